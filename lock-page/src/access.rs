//! Decides who is allowed to see the page, and which requests are allowed to release a lock.

use axum::http::{
    HeaderMap, Uri,
    header::{AUTHORIZATION, COOKIE, HOST, ORIGIN},
};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use uuid::Uuid;

/// The secret of a page, and the token that its visitors need.
pub(crate) struct Access {
    key: Hmac<Sha256>,
    token: Option<String>,
}

/// The purpose of a signature. A signature that was made for one purpose is not valid for another purpose.
#[derive(Debug, Clone, Copy)]
enum Purpose {
    /// The signature of a token. The signature is compared with the signature of another token, and never leaves the
    /// process.
    Token,
    /// The cookie of a visitor who has sent the token.
    Visitor,
    /// The hidden field of a form, which is valid only with the form cookie of the same visitor.
    Form,
    /// The part of a cookie's name that depends on the secret.
    Name,
}

/// A form cookie, and the hidden form field that is valid only with this cookie.
pub(crate) struct FormToken {
    pub(crate) cookie: String,
    pub(crate) field: String,
}

impl Access {
    /// Without a secret and without a token, the signing key is random, so signatures are valid only until the process
    /// ends.
    pub(crate) fn new(token: Option<String>, secret: Option<String>) -> Self {
        let random = || format!("{}{}", Uuid::new_v4(), Uuid::new_v4());
        let secret = secret.or_else(|| token.clone()).unwrap_or_else(random);
        let key = Hmac::new_from_slice(secret.as_bytes()).expect("HMAC takes a key of any length");
        Self { key, token }
    }

    fn mac(&self, purpose: Purpose, value: &str) -> Hmac<Sha256> {
        self.key
            .clone()
            .chain_update([purpose as u8])
            .chain_update(value.as_bytes())
    }

    fn sign(&self, purpose: Purpose, value: &str) -> String {
        let bytes = self.mac(purpose, value).finalize().into_bytes();
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Returns whether the signature is right. The comparison always takes the same time, so its duration does not show
    /// how many characters are right.
    fn is_signed(&self, purpose: Purpose, value: &str, signature: &str) -> bool {
        let digits = signature.as_bytes().chunks(2);
        let bytes = digits.map(|pair| {
            let pair = str::from_utf8(pair).ok()?;
            u8::from_str_radix(pair, 16).ok()
        });
        let bytes: Option<Vec<_>> = bytes.collect();
        bytes.is_some_and(|bytes| self.mac(purpose, value).verify_slice(&bytes).is_ok())
    }

    /// Returns whether a text is the page's token.
    fn is_token(&self, given: &str) -> bool {
        let token = self.token.as_deref();
        // This method compares signatures instead of the texts themselves. A comparison of the texts would take longer
        // if more of the first characters are right, so an attacker could measure how many are right.
        token.is_some_and(|token| {
            let given = self.sign(Purpose::Token, given);
            self.is_signed(Purpose::Token, token, &given)
        })
    }

    /// Returns whether the headers of a request prove that the visitor is allowed to see the page.
    pub(crate) fn knows(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.token else {
            return true;
        };
        let bearer = header(headers, AUTHORIZATION).and_then(|text| text.strip_prefix("Bearer "));
        bearer.is_some_and(|given| self.is_token(given))
            || self
                .cookie(headers, "visitor")
                .is_some_and(|cookie| self.is_signed(Purpose::Visitor, token, cookie))
    }

    /// Returns the cookie for a visitor whose URL contains the page's token, or `None` if the token in the URL is
    /// wrong.
    pub(crate) fn admit(&self, given: &str, base: &str) -> Option<String> {
        let token = self.token.as_deref().filter(|_| self.is_token(given))?;
        let value = self.sign(Purpose::Visitor, token);
        // The cookie is `Lax`, so that the browser also sends it when a person follows a link from a chat to this page.
        Some(self.set_cookie("visitor", &value, base, "Lax"))
    }

    /// Returns the visitor's form cookie, or a new one, and the hidden form field that is valid only with this cookie.
    pub(crate) fn form_token(&self, headers: &HeaderMap, base: &str) -> FormToken {
        let known = self
            .cookie(headers, "form")
            .filter(|value| Uuid::try_parse(value).is_ok());
        let value = known.map_or_else(|| Uuid::new_v4().to_string(), str::to_owned);
        FormToken {
            cookie: self.set_cookie("form", &value, base, "Strict"),
            field: self.sign(Purpose::Form, &value),
        }
    }

    /// Returns whether a form was sent from a page of this origin, and by the same visitor who opened the form.
    pub(crate) fn may_change(&self, headers: &HeaderMap, field: &str) -> bool {
        let host = header(headers, HOST);
        let origin = header(headers, ORIGIN).and_then(|origin| origin.split_once("://"));
        let is_same_origin = origin.is_some_and(|(_, origin)| Some(origin) == host);
        let cookie = self.cookie(headers, "form");
        is_same_origin && cookie.is_some_and(|cookie| self.is_signed(Purpose::Form, cookie, field))
    }

    /// Returns the full name of a cookie. Browsers send a cookie to all ports of a host, so pages with different
    /// secrets use different names.
    fn name(&self, name: &str) -> String {
        format!("lock_page_{name}_{}", &self.sign(Purpose::Name, name)[..8])
    }

    fn set_cookie(&self, name: &str, value: &str, base: &str, same_site: &str) -> String {
        let path = if base.is_empty() { "/" } else { base };
        format!(
            "{}={value}; Path={path}; HttpOnly; SameSite={same_site}",
            self.name(name)
        )
    }

    fn cookie<'a>(&self, headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
        let name = self.name(name);
        let lines = headers
            .get_all(COOKIE)
            .into_iter()
            .filter_map(|line| line.to_str().ok());
        let mut cookies = lines
            .flat_map(|line| line.split(';'))
            .filter_map(|cookie| cookie.trim().split_once('='));
        cookies.find_map(|(of, value)| (of == name).then_some(value))
    }
}

fn header(headers: &HeaderMap, name: axum::http::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// Returns the path under which the page is mounted, without a slash at its end.
pub(crate) fn mount(original: &Uri, inner: &Uri) -> String {
    let path = original.path();
    path.strip_suffix(inner.path())
        .unwrap_or(path)
        .trim_end_matches('/')
        .to_owned()
}
