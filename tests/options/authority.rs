//! A certificate authority for tests with TLS.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// A certificate authority.
#[derive(Debug)]
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// The certificate of the authority, in PEM format.
    pub(crate) certificate: String,
}

/// A certificate and its key, both in PEM format.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    /// Creates an authority with this name and a new key.
    pub(crate) fn new(name: &str) -> Self {
        let key = KeyPair::generate().expect("a key can be generated");
        let mut params = CertificateParams::new([]).expect("a certificate needs no names");
        // With the default name, the authority and its certificates would have the same name, so OpenSSL would take the
        // certificates for self-signed ones.
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params
            .self_signed(&key)
            .expect("the certificate can be signed")
            .pem();
        Self {
            issuer: Issuer::new(params, key),
            certificate,
        }
    }

    /// Issues a certificate for these host names and IP addresses.
    pub(crate) fn issue(&self, names: &[&str]) -> Identity {
        let key = KeyPair::generate().expect("a key can be generated");
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let params = CertificateParams::new(names).expect("the names are valid");
        let certificate = params.signed_by(&key, &self.issuer);
        Identity {
            certificate: certificate.expect("the certificate can be signed").pem(),
            key: key.serialize_pem(),
        }
    }
}
