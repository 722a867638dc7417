//! A real server and a simulated server that receive the same commands.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::{Read, Write},
    net::TcpStream,
};

use lock_simulation::redis::{ConnectionId, Mode, Output, Redis};

use crate::{Step, calls::channels};

/// The precision, in ms, with which times to live are compared: each time to live is first rounded up to a multiple of
/// this time.
pub(crate) const STEP: u64 = 250;
/// The time that scripts see at the beginning of a sequence, in µs.
pub(crate) const START: u64 = 1_800_000_000_000_000;
const END: &str = "the end of the sequence";

/// Shortens the time to live of all keys by `ARGV[1]` ms.
const PASS_TIME: &str = "for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', key)
  if left > 0 and left < 1e8 then
    redis.call('PEXPIRE', key, math.ceil(left / 250) * 250 - ARGV[1])
  end
end";
/// Returns all keys with their values and expiries.
const DUMP: &str = "local found, keys = {}, redis.call('KEYS', '*')
table.sort(keys)
for i, key in ipairs(keys) do
  local kind, left = redis.call('TYPE', key).ok, redis.call('PTTL', key)
  left = left > 1e8 and redis.call('PEXPIRETIME', key) or math.ceil(left / 250) * 250
  local value = kind == 'string' and redis.call('GET', key) or kind == 'hash' and redis.call('HGETALL', key)
    or kind == 'list' and redis.call('LRANGE', key, 0, -1) or redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  found[i] = { key, kind, string.format('%.0f', left), value }
end
return found";

/// Both servers, and the commands sent to them.
pub(crate) struct Pair {
    pub(crate) real: TcpStream,
    pub(crate) simulated: Redis,
    pub(crate) id: ConnectionId,
    pub(crate) time: u64,
    sent: Vec<u8>,
    answered: Vec<u8>,
    log: String,
    /// How many lines of the real server's replies begin with each of these texts.
    pub(crate) outcomes: BTreeMap<&'static str, usize>,
}

pub(crate) fn encode(args: &[String]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len());
    for arg in args {
        let _ = write!(bytes, "${}\r\n{arg}\r\n", arg.len());
    }
    bytes.into_bytes()
}

pub(crate) fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

impl Pair {
    pub(crate) fn new(port: u16) -> Self {
        let real = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
        real.set_nodelay(true).expect("a socket can be set up");
        let mut simulated = Redis::new("0".repeat(40));
        let id = simulated.connect();
        let mut pair = Self {
            real,
            simulated,
            id,
            time: START,
            sent: Vec::new(),
            answered: Vec::new(),
            log: String::new(),
            outcomes: BTreeMap::new(),
        };
        // The reply to `HELLO` is not compared, because it contains the version and the connection's ID.
        pair.real
            .write_all(&encode(&words("HELLO 3")))
            .expect("the server reads");
        let _ = pair.real.read(&mut [0; 4096]).expect("the server answers");
        pair.simulated
            .receive(id, &encode(&words("HELLO 3")), START);
        pair
    }

    fn simulate(&mut self, args: &[String]) {
        let outputs = self.simulated.receive(self.id, &encode(args), START);
        for output in outputs {
            match output {
                Output::Bytes(_, bytes) => self.answered.extend(bytes),
                Output::Closed(_) => panic!("no step closes a connection"),
            }
        }
    }

    fn both(&mut self, args: &[String]) {
        let _ = writeln!(self.log, "  {args:?}");
        self.simulate(args);
        self.sent.extend(encode(args));
    }

    fn eval(&mut self, source: &str, args: &[String]) {
        let command = [
            words("EVAL"),
            vec![source.to_owned(), "0".to_owned()],
            args.to_vec(),
        ];
        self.both(&command.concat());
    }

    fn set_mode(&mut self, mode: Mode) {
        // An open transaction would queue the command that sets the real server's mode, so the transaction is discarded
        // first.
        self.both(&words("DISCARD"));
        let _ = writeln!(self.log, "  {mode:?}");
        self.simulated.set_mode(mode);
        let memory = u8::from(mode == Mode::OutOfMemory);
        self.sent
            .extend(encode(&words(&format!("CONFIG SET maxmemory {memory}"))));
        self.sent.extend(encode(&words("REPLICAOF NO ONE")));
        self.answered.extend(b"+OK\r\n+OK\r\n");
        if mode == Mode::ReadOnly {
            self.sent.extend(encode(&words("REPLICAOF 127.0.0.1 1")));
            self.answered.extend(b"+OK\r\n");
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Command(args) => self.both(args),
            Step::Script(call) => {
                let args = call.command(self);
                self.both(&args);
            }
            Step::Mode(mode) => self.set_mode(*mode),
            Step::Pass(steps) => {
                self.time += steps * STEP * 1000;
                self.eval(PASS_TIME, &[(steps * STEP).to_string()]);
            }
        }
    }

    /// Carries out a sequence on both servers. Returns an error if their replies differ.
    pub(crate) fn compare(&mut self, steps: &[Step]) -> Result<(), String> {
        (self.time, self.log) = (START, String::new());
        self.sent.clear();
        self.answered.clear();
        self.both(&words("FLUSHALL"));
        steps.iter().for_each(|step| self.step(step));
        self.set_mode(Mode::Normal);
        for channel in channels() {
            self.both(&["UNSUBSCRIBE".to_owned(), channel]);
        }
        self.eval(DUMP, &[]);
        self.both(&["ECHO".to_owned(), END.to_owned()]);
        let sent = std::mem::take(&mut self.sent);
        self.real.write_all(&sent).expect("the server reads");
        self.sent = sent;
        let mut answered = Vec::new();
        while !answered.ends_with(format!("{END}\r\n").as_bytes()) {
            let mut buffer = [0; 65536];
            let count = self.real.read(&mut buffer).expect("the server answers");
            assert_ne!(
                count, 0,
                "the server has closed the connection:\n{}",
                self.log
            );
            answered.extend_from_slice(&buffer[..count]);
        }
        for (outcome, count) in &mut self.outcomes {
            let text = format!("\n{outcome}");
            *count += answered
                .windows(text.len())
                .filter(|part| *part == text.as_bytes())
                .count();
        }
        if answered == self.answered {
            return Ok(());
        }
        let lines = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes).into_owned();
            text.split("\r\n").map(str::to_owned).collect::<Vec<_>>()
        };
        // The command that reads the dump is the longest and always the same, so it is removed from the log.
        self.log
            .truncate(self.log.rfind("  [\"EVAL\"").unwrap_or_default());
        let (real, simulated) = (lines(&answered), lines(&self.answered));
        let same = real
            .iter()
            .zip(&simulated)
            .take_while(|(one, other)| one == other)
            .count();
        let show = |lines: &[String]| {
            let end = lines.len().min(same + 12);
            lines[same.saturating_sub(6)..end].join("\n  ")
        };
        Err(format!(
            "after\n{}the replies differ from line {same} on; real:\n  {}\nsimulated:\n  {}",
            self.log,
            show(&real),
            show(&simulated)
        ))
    }
}
