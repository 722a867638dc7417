//! Tests of the options for TLS and for the password.

use std::{fs, path::PathBuf};

use support::server::RedisServer;

use crate::{
    authority::{Authority, Identity},
    tool::{Ran, key, lockctl, output},
};

/// The only name in the server's certificate. The URL contains an IP address instead.
const NAME: &str = "redis.internal";
/// The names of methods that a user of `lockctl` cannot call.
const METHODS: [&str; 4] = ["tls_", "connect_within", "Pem::", "builder"];

/// A server that requires client certificates of a private authority, and the files for its clients.
struct Scene {
    server: RedisServer,
    folder: PathBuf,
}

impl Scene {
    async fn start() -> Self {
        let folder = std::env::temp_dir().join(format!("lockctl-{}", key()));
        fs::create_dir(&folder).unwrap();
        let authority = Authority::new("authority");
        let Identity { certificate, key } = authority.issue(&[NAME]);
        let server = RedisServer::builder()
            .tls(&certificate, &key)
            .client_ca(&authority.certificate)
            .start()
            .await;
        let client = authority.issue(&["locks"]);
        for (file, text) in [
            ("ca.pem", &authority.certificate),
            ("client.pem", &client.certificate),
            ("client.key", &client.key),
        ] {
            fs::write(folder.join(file), text).unwrap();
        }
        Self { server, folder }
    }

    fn url(&self) -> String {
        format!("rediss://127.0.0.1:{}/", self.server.tls_port())
    }

    fn file(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_owned()
    }

    /// Runs `lockctl` with the options of this scene except for `without`, before or after the subcommand `words`.
    fn ran(&self, without: &str, words: &[&str], before: bool) -> Ran {
        let (ca, certificate, key) = (
            self.file("ca.pem"),
            self.file("client.pem"),
            self.file("client.key"),
        );
        let options = [
            ["--cacert", &ca],
            ["--cert", &certificate],
            ["--key", &key],
            ["--server-name", NAME],
        ];
        let options = options.iter().filter(|[option, _]| *option != without);
        let options: Vec<&str> = options.flatten().copied().collect();
        let parts = if before {
            [&options, words]
        } else {
            [words, &options]
        };
        output(&self.url(), &parts.concat())
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn options_and_variables_set_certificates_and_the_servers_name() {
    let scene = Scene::start().await;
    for before in [true, false] {
        let listed = scene.ran("", &["list"], before).with_code(0);
        assert_eq!(listed.stdout, "no lock is held\n");
    }
    // After `run`, `--key` is the key of the lock.
    let run = ["run", "--key", "backup", "--", "sh", "-c", "echo $LOCK_KEY"];
    assert_eq!(scene.ran("", &run, true).with_code(0).stdout, "backup\n");
    let examined = scene.ran("", &["doctor"], true);
    assert!(examined.stdout.contains("ok   version"), "{examined:?}");
    let mut command = lockctl(&scene.url(), &["list"]);
    command
        .env("LOCK_TLS_CACERT", scene.file("ca.pem"))
        .env("LOCK_TLS_CERT", scene.file("client.pem"))
        .env("LOCK_TLS_KEY", scene.file("client.key"))
        .env("LOCK_TLS_SERVER_NAME", NAME);
    Ran::from(command.output().unwrap()).with_code(0);
}

/// The errors say which option to check. They name no method of the library.
#[tokio::test(flavor = "multi_thread")]
async fn errors_name_the_options() {
    let scene = Scene::start().await;
    for (without, option) in [
        ("--cacert", "`--cacert`"),
        ("--server-name", "`--server-name`"),
        ("--key", "`--cert` needs `--key FILE`"),
        ("--cert", "`--key` needs `--cert FILE`"),
    ] {
        let ran = scene.ran(without, &["list"], true).with_code(78);
        assert!(ran.stderr.contains(option), "{without}: {ran:?}");
        let named = METHODS.iter().find(|method| ran.stderr.contains(**method));
        assert_eq!(named, None, "{without}: {ran:?}");
    }
    let missing = ["--cacert", "/no/such/file", "list"];
    let ran = output(&scene.url(), &missing).with_code(78);
    assert!(ran.stderr.contains("/no/such/file"), "{ran:?}");
    let text = fs::read_to_string(scene.file("ca.pem")).unwrap();
    let mut command = lockctl(&scene.url(), &["list"]);
    command.env("LOCK_TLS_CACERT", text);
    let ran = Ran::from(command.output().unwrap()).with_code(78);
    assert!(ran.stderr.contains("path of a file"), "{ran:?}");
    assert!(!ran.stderr.contains("BEGIN"), "{ran:?}");
}

/// The password can stand in a file, so that no list of processes shows it.
#[tokio::test(flavor = "multi_thread")]
async fn the_password_can_be_read_from_a_file() {
    let server = RedisServer::builder()
        .arg("--requirepass", "secret")
        .start()
        .await;
    let url = format!("redis://127.0.0.1:{}/", server.port());
    let file = std::env::temp_dir().join(format!("lockctl-{}", key()));
    let words = ["--password-file", file.to_str().unwrap()];
    let run = |more: &[&str]| output(&url, &[&words, more].concat());
    let none = run(&["list"]).with_code(78);
    assert!(none.stderr.contains("`--password-file`"), "{none:?}");
    fs::write(&file, "wrong\n").unwrap();
    let refused = run(&["list"]).with_code(77);
    assert!(refused.stderr.contains("`--password-file`"), "{refused:?}");
    fs::write(&file, "secret\n").unwrap();
    run(&["list"]).with_code(0);
    run(&["run", "-k", "k", "--", "true"]).with_code(0);
    let examined = run(&["doctor"]);
    assert!(examined.stdout.contains("ok   version"), "{examined:?}");
    let mut command = lockctl(&url, &["list"]);
    command.env("LOCK_PASSWORD_FILE", &file);
    Ran::from(command.output().unwrap()).with_code(0);
    fs::remove_file(file).unwrap();
}
