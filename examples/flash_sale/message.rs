//! The messages that a worker process sends to the host. Each message is one line.

use std::{fmt, str::FromStr, time::Duration};

use crate::buyer::Purchase;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    /// The worker is connected and ready for the beginning of the sale.
    Ready,
    /// A buyer of the victim (the worker that the host will kill) holds the lock and waits for the kill.
    Inside,
    /// A buyer has finished its purchase.
    Purchase(Purchase),
    /// All buyers of the worker have finished. The fields are counters of the worker's lock client.
    Done { acquired: u64, commands: u64 },
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("ready"),
            Self::Inside => f.write_str("inside"),
            Self::Purchase(Purchase::Sold {
                item,
                token,
                waited,
            }) => {
                // A fencing token is never 0, so 0 stands for the missing token of an unguarded sale.
                let token = token.unwrap_or(0);
                write!(f, "sold {item} {token} {}", waited.as_micros())
            }
            Self::Purchase(Purchase::SoldOut { waited }) => {
                write!(f, "sold-out {}", waited.as_micros())
            }
            Self::Purchase(Purchase::Failed { why }) => {
                write!(f, "failed {}", why.replace('\n', " "))
            }
            Self::Done { acquired, commands } => write!(f, "done {acquired} {commands}"),
        }
    }
}

impl FromStr for Message {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let unknown = || format!("a worker wrote `{line}`, which is not a message");
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        if word == "failed" {
            return Ok(Self::Purchase(Purchase::Failed { why: rest.into() }));
        }
        let numbers: Result<Vec<u64>, _> = rest.split_whitespace().map(str::parse).collect();
        let numbers = numbers.map_err(|_| unknown())?;
        Ok(match (word, numbers.as_slice()) {
            ("ready", []) => Self::Ready,
            ("inside", []) => Self::Inside,
            ("sold", &[item, token, waited]) => Self::Purchase(Purchase::Sold {
                item,
                token: (token > 0).then_some(token),
                waited: Duration::from_micros(waited),
            }),
            ("sold-out", &[waited]) => Self::Purchase(Purchase::SoldOut {
                waited: Duration::from_micros(waited),
            }),
            ("done", &[acquired, commands]) => Self::Done { acquired, commands },
            _ => return Err(unknown()),
        })
    }
}
