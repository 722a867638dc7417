//! Certificates and keys in PEM format.

use std::{fmt, path::PathBuf, sync::Arc};

/// Certificates or a key in PEM format: the path of a file, or the text itself.
///
/// ```
/// use lock_runtime::Pem;
///
/// let from_file = Pem::file("/etc/tls/ca.pem");
/// let from_secret = Pem::text("-----BEGIN CERTIFICATE-----\n…");
/// assert_eq!(format!("{from_secret:?}"), "Pem(text)"); // the text may be a private key
/// # let _ = from_file;
/// ```
#[derive(Clone)]
pub struct Pem(pub(crate) PemSource);

#[derive(Clone)]
pub(crate) enum PemSource {
    File(PathBuf),
    Text(Arc<[u8]>),
}

impl Pem {
    /// Reads the file at `path` when the client is created, and again for each new connection. A certificate that is
    /// replaced on disk is therefore used from the next connection on. If the file cannot be read then, the connection
    /// uses the text that was read last.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self(PemSource::File(path.into()))
    }

    /// Uses this text, for instance from an environment variable.
    pub fn text(text: impl AsRef<[u8]>) -> Self {
        Self(PemSource::Text(text.as_ref().into()))
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            PemSource::File(path) if !is_pem(&path.to_string_lossy()) => {
                f.debug_tuple("Pem").field(path).finish()
            }
            _ => f.write_str("Pem(text)"),
        }
    }
}

/// Returns whether a path is actually the text of a certificate or a key. A caller may pass such a text to
/// [`Pem::file`] by mistake.
pub(crate) fn is_pem(path: &str) -> bool {
    path.contains("-----BEGIN")
}
