//! A cluster on an etcd that wants to know who asks: TLS in both directions, and a user that may write below `/lockwright/` only.

use crate::members::{Members, Trust, run, until};
use crate::servers::{Cluster, lockwright, until_held};
use crate::strangers::refusal;
use lockwright::{Client, ClientOptions};
use lockwright_cluster::etcd::Tls;
use nix::sys::signal::Signal;
use std::path::Path;
use std::process::{Command, Stdio};

const USER: (&str, &str) = ("lockwright", "sesame");

/// A certificate and its key, PEM. etcd's gateway takes none of clients that has a common name.
fn certificate(has_common_name: bool) -> (String, String) {
    let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a name");
    if !has_common_name {
        params.distinguished_name = rcgen::DistinguishedName::new();
    }
    let key = rcgen::KeyPair::generate().expect("made");
    (params.self_signed(&key).expect("signed").pem(), key.serialize_pem())
}

/// Files in the folder of the members: how etcd is known, who we are, and with which password.
struct Files(Vec<(&'static str, String)>);

impl Files {
    fn write(folder: &Path, files: &[(&'static str, &str)]) -> Self {
        let write = |(name, text): &(&'static str, &str)| {
            let path = folder.join(name);
            std::fs::write(&path, text).expect("written");
            (*name, path.to_str().expect("a plain path").to_owned())
        };
        Self(files.iter().map(write).collect())
    }

    fn at(&self, name: &str) -> &str {
        &self.0.iter().find(|(file, _)| *file == name).expect("it was written").1
    }
}

/// Runs etcdctl as the administrator of these members. `None`: there is no such program.
fn administer(members: &Members, files: &Files, commands: &[&[&str]]) -> Option<()> {
    for args in commands {
        let mut etcdctl = Command::new("etcdctl");
        etcdctl.env("ETCDCTL_API", "3").args(["--endpoints", &members.endpoints.join(",")]);
        etcdctl.args(["--cacert", files.at("etcd.pem"), "--cert", files.at("own.pem")]);
        etcdctl.args(["--key", files.at("own.key")]).args(*args).stdin(Stdio::null());
        let done = etcdctl.output().ok()?;
        assert!(done.status.success(), "{args:?}: {done:?}");
    }
    Some(())
}

#[test]
fn a_cluster_serves_on_an_etcd_with_certificates_and_users_and_strangers_are_told_what_is_missing() {
    let ((theirs, key), (own, own_key)) = (certificate(true), certificate(false));
    let ((other, other_key), (named, named_key)) = (certificate(false), certificate(true));
    let trust = Trust::Mutual(theirs.clone(), key, format!("{theirs}{own}{named}"));
    let Some(mut members) = Members::start_with("trusted", trust) else { return };
    let (name, password) = USER;
    let files = Files::write(
        members.folder(),
        &[
            ("etcd.pem", &theirs),
            ("own.pem", &own),
            ("own.key", &own_key),
            ("other.pem", &other),
            ("other.key", &other_key),
            ("named.pem", &named),
            ("named.key", &named_key),
            ("user", &format!("{name}:{password}\n")),
            ("wrong", &format!("{name}:open\n")),
        ],
    );
    let tls = Tls::from_pem(theirs.as_bytes(), Some((own.as_bytes(), own_key.as_bytes())));
    members.access.tls = Some(tls.expect("certificates"));
    run(async { drop(members.ready().await) });
    let users: [&[&str]; 6] = [
        &["user", "add", "root:root"],
        &["user", "add", &format!("{name}:{password}")],
        &["role", "add", "locks"],
        &["role", "grant-permission", "locks", "--prefix=true", "readwrite", "/lockwright/"],
        &["user", "grant-role", name, "locks"],
        &["auth", "enable"],
    ];
    if administer(&members, &files, &users).is_none() {
        println!("skipped: there is no program `etcdctl` (apt-get install etcd-client)");
        return;
    }
    members.access.user = Some((name.to_owned(), password.to_owned()));
    run(until("users are known everywhere", async || members.client().range("/lockwright/").await.is_ok()));
    let pair =
        |name: &str| format!("{},{}", files.at(&format!("{name}.pem")), files.at(&format!("{name}.key")));
    let (ours, theirs, named) = (pair("own"), pair("other"), pair("named"));
    let access: Vec<_> =
        ["--etcd-ca", files.at("etcd.pem"), "--etcd-cert", &ours, "--etcd-user-file", files.at("user")]
            .map(str::to_owned)
            .into();
    let mut cluster = Cluster::start_on(members, access.clone());

    let read = |name: &str| std::fs::read(files.at(name)).expect("read");
    let known = |options: ClientOptions| {
        options.etcd_tls(read("etcd.pem")).etcd_cert(read("own.pem"), read("own.key"))
    };
    let options = known(Client::options()).etcd_user(name, password);
    let client = || options.open(&cluster.space()).wait().expect("a client");
    let (one, two) = (client(), client());
    let guard = one.mutex("job").unwrap().lock().wait().unwrap();
    assert!(two.mutex("job").unwrap().try_lock().wait().is_err(), "it is held");
    let owner = cluster.owner("job");
    cluster.servers[owner].1.send(Signal::SIGKILL);
    let free = two.mutex(cluster.neighbour("job")).unwrap().lock().wait().unwrap();
    until_held(&guard);
    drop(free);
    guard.unlock().wait().expect("it was held all the time");
    cluster.servers.remove(owner);
    cluster.until("every shard is open", |map| {
        map.serving.len() == 6 && map.serving.values().all(|serving| serving.is_open)
    });

    let ask = |args: &[&str], access: &[String]| lockwright(args).args(access).output().expect("it runs");
    let (space, etcd) = (cluster.space(), cluster.etcd());
    let (status, doctor) = (["cluster", "status", "--space", &space], ["doctor", "--cluster", &etcd]);
    for args in [&status[..], &doctor[..]] {
        let said = ask(args, &access);
        assert_eq!(said.status.code(), Some(0), "{said:?}");
        // Without the certificate the servers say what etcd would.
        let said = ask(args, &[]);
        assert_ne!(said.status.code(), Some(0), "{said:?}");
    }

    let at = cluster.members.endpoints.join(",");
    let (ca, user) = (files.at("etcd.pem"), files.at("user"));
    let etcd_of = |ca: &str, own: &str| ["--etcd-ca", ca, "--etcd-cert", own].map(str::to_owned).to_vec();
    let with = |mut args: Vec<String>, more: &[&str]| {
        args.extend(more.iter().map(|arg| (*arg).to_owned()));
        args
    };
    for (args, says) in [
        (Vec::new(), "--etcd-ca"),
        (with(etcd_of(files.at("other.pem"), &ours), &["--etcd-user-file", user]), "certificate"),
        (with(etcd_of(ca, &theirs), &["--etcd-user-file", user]), "received fatal alert"),
        (with(etcd_of(ca, &named), &["--etcd-user-file", user]), "a common name"),
        (etcd_of(ca, &ours), "refuses access"),
        (with(etcd_of(ca, &ours), &["--etcd-user-file", files.at("wrong")]), "refuses access"),
    ] {
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let said = refusal(&at, &args);
        assert!(said.contains(says), "{args:?}: {said}");
    }
}
