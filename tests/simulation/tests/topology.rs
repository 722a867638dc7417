//! Compares a simulated primary, a replica, a Sentinel and the nodes of a cluster with real servers. Each pair receives
//! the same commands, and has to give the same replies.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use lock_simulation::redis::{Address, Output, Redis, cluster::slot_of};
use support::{cluster::ClusterServers, sentinels::SentinelGroup, server::RedisServer, until};

const NOW: u64 = 1_700_000_000_000_000;

fn encode(args: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len());
    for arg in args {
        bytes += &format!("${}\r\n{arg}\r\n", arg.len());
    }
    bytes.into_bytes()
}

/// A connection to a real server that uses RESP3.
struct Real(TcpStream);

impl Real {
    fn connect(server: &RedisServer) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("the server listens");
        let patience = Some(Duration::from_secs(10));
        stream
            .set_read_timeout(patience)
            .expect("the socket accepts a time limit");
        let mut real = Self(stream);
        real.ask(&["HELLO", "3"]);
        real
    }

    /// Sends a command, and returns everything that arrives before the reply to an `ECHO` that follows.
    fn ask(&mut self, args: &[&str]) -> String {
        const END: &str = "$3\r\nend\r\n";
        let bytes = [encode(args), encode(&["ECHO", "end"])].concat();
        self.0.write_all(&bytes).expect("the server reads");
        self.until(END)
    }

    /// Sends a command to a Sentinel, which does not know `ECHO`.
    fn ask_sentinel(&mut self, args: &[&str]) -> String {
        let bytes = [encode(args), encode(&["PING"])].concat();
        self.0.write_all(&bytes).expect("the server reads");
        self.until("+PONG\r\n")
    }

    fn until(&mut self, end: &str) -> String {
        let mut received = Vec::new();
        while !received.ends_with(end.as_bytes()) {
            let mut buffer = [0; 4096];
            let count = self.0.read(&mut buffer).expect("the server answers");
            assert_ne!(count, 0, "the server has closed the connection");
            received.extend_from_slice(&buffer[..count]);
        }
        received.truncate(received.len() - end.len());
        String::from_utf8(received).expect("the replies are text")
    }
}

/// Returns the bytes among these outputs.
fn text(outputs: Vec<Output>) -> String {
    let bytes = outputs.into_iter().flat_map(|output| match output {
        Output::Bytes(_, bytes) => bytes,
        Output::Closed(_) => Vec::new(),
    });
    String::from_utf8(bytes.collect()).expect("the replies are text")
}

/// A simulated server with a connection that uses RESP3.
struct Simulated {
    redis: Redis,
    id: lock_simulation::redis::ConnectionId,
}

impl Simulated {
    fn new(mut redis: Redis) -> Self {
        let id = redis.connect();
        redis.receive(id, &encode(&["HELLO", "3"]), NOW);
        Self { redis, id }
    }

    fn ask(&mut self, args: &[&str]) -> String {
        text(self.redis.receive(self.id, &encode(args), NOW))
    }
}

fn at(port: u16) -> Address {
    Address {
        host: "127.0.0.1".to_owned(),
        port,
    }
}

#[tokio::test]
async fn a_primary_waits_for_its_replicas_like_a_real_one() {
    let server = RedisServer::start().await;
    let mut real = Real::connect(&server);
    let mut simulated = Simulated::new(Redis::new("run".to_owned()));
    for command in [
        &["WAIT", "0", "10"][..],
        &["WAIT", "-1", "10"],
        &["WAIT", "x", "10"],
        &["WAIT", "1", "x"],
        &["WAIT", "1", "-1"],
        &["WAIT", "1"],
        &["EVAL", "return redis.pcall('WAIT', 0, 1).err", "0"],
        &["ROLE", "x"],
        &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "shop"],
        &["CLUSTER", "SLOTS"],
        &["ASKING"],
    ] {
        assert_eq!(real.ask(command), simulated.ask(command), "{command:?}");
    }
    // No replica acknowledges the write, so `WAIT` replies only after its time limit of 30 ms.
    assert_eq!(simulated.ask(&["WAIT", "1", "30"]), "");
    assert_eq!(simulated.redis.due(), Some(NOW + 30_000));
    assert_eq!(text(simulated.redis.wake(NOW + 29_999)), "");
    let answered = text(simulated.redis.wake(NOW + 30_000));
    assert_eq!(real.ask(&["WAIT", "1", "30"]), answered);

    let replica = RedisServer::builder().replica_of(&server).start().await;
    until(async || {
        let mut real = Real::connect(&server);
        real.ask(&["SET", "a", "1"]);
        real.ask(&["WAIT", "1", "1000"]) == ":1\r\n"
    })
    .await;
    // A command that is sent while the connection waits is carried out afterwards.
    simulated.ask(&["SET", "a", "1"]);
    let before = [encode(&["WAIT", "1", "0"]), encode(&["GET", "a"])].concat();
    let outputs = simulated.redis.receive(simulated.id, &before, NOW);
    assert_eq!(text(outputs), "");
    let offset = simulated.redis.offset();
    let follower = at(replica.port());
    let outputs = simulated
        .redis
        .acknowledge(follower.clone(), offset - 1, NOW);
    assert_eq!(text(outputs), "");
    let outputs = simulated.redis.acknowledge(follower, offset, NOW);
    real.ask(&["SET", "a", "1"]);
    let answered = [real.ask(&["WAIT", "1", "0"]), real.ask(&["GET", "a"])].concat();
    assert_eq!(text(outputs), answered);
    let role = |text: String| text.lines().take(3).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(role(real.ask(&["ROLE"])), role(simulated.ask(&["ROLE"])));

    // A primary that becomes a replica ends the waits of its connections.
    let bytes = encode(&["WAIT", "2", "0"]);
    real.0.write_all(&bytes).expect("the server reads");
    let mut other = Real::connect(&server);
    until(async || {
        let info = other.ask(&["INFO", "clients"]);
        info.contains("blocked_clients:1")
    })
    .await;
    let port = replica.port().to_string();
    other.ask(&["REPLICAOF", "127.0.0.1", &port]);
    assert_eq!(simulated.ask(&["WAIT", "2", "0"]), "");
    let outputs = simulated.redis.follow(Some(at(replica.port())));
    assert_eq!(outputs.last(), Some(&Output::Closed(simulated.id)));
    let unblocked = text(outputs);
    let mut arrived = String::new();
    let read = real.0.read_to_string(&mut arrived);
    read.expect("the server answers, and closes the connection");
    assert_eq!(arrived, unblocked);
    let mut real = Real::connect(&server);
    let mut simulated = Simulated::new(simulated.redis);
    for command in [
        &["WAIT", "0", "1"][..],
        &["SET", "a", "2"],
        &["EVAL", "redis.call('SET', KEYS[1], '2') return 1", "1", "a"],
        &["GET", "a"],
    ] {
        assert_eq!(real.ask(command), simulated.ask(command), "{command:?}");
    }
    let role = |text: String| text.lines().take(6).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(role(real.ask(&["ROLE"])), role(simulated.ask(&["ROLE"])));
}

#[tokio::test]
async fn a_sentinel_answers_like_a_real_one() {
    let group = SentinelGroup::start().await;
    let mut real = Real(TcpStream::connect(("127.0.0.1", group.sentinels[0].port())).unwrap());
    real.ask_sentinel(&["HELLO", "3"]);
    let mut simulated = Simulated::new(Redis::sentinel("run".to_owned(), "shop"));
    let primary = group.servers[0].port();
    simulated.redis.name_primary(at(primary), NOW);
    for command in [
        &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "shop"][..],
        &["SENTINEL", "get-master-addr-by-name", "other"],
        &["SENTINEL", "GET-MASTER-ADDR-BY-NAME"],
        &["ROLE"],
        &["GET", "a"],
        &["EVAL", "return 1", "0"],
        &["TIME"],
        &["WAIT", "0", "1"],
        &["SUBSCRIBE", "+switch-master"],
    ] {
        let replies = (real.ask_sentinel(command), simulated.ask(command));
        assert_eq!(replies.0, replies.1, "{command:?}");
    }
    // An operator orders a failover.
    let mut operator = Real(TcpStream::connect(("127.0.0.1", group.sentinels[0].port())).unwrap());
    operator.ask_sentinel(&["SENTINEL", "FAILOVER", "shop"]);
    let new = group.promoted_instead_of(0).await;
    let told = text(
        simulated
            .redis
            .name_primary(at(group.servers[new].port()), NOW),
    );
    assert_eq!(real.until(&told), "");
}

#[tokio::test]
async fn the_nodes_of_a_cluster_redirect_like_real_ones() {
    let cluster = ClusterServers::start(2).await;
    let ports: Vec<u16> = cluster.servers.iter().map(RedisServer::port).collect();
    let ranges = vec![(0, 8_191, at(ports[0])), (8_192, 16_383, at(ports[1]))];
    let mut reals: Vec<Real> = cluster.servers.iter().map(Real::connect).collect();
    let mut simulated: Vec<Simulated> = (0..2)
        .map(|node| {
            let mut redis = Redis::node("run".to_owned(), at(ports[node]));
            let view = redis.view().expect("the server is a node");
            (view.ranges, view.is_up) = (ranges.clone(), true);
            Simulated::new(redis)
        })
        .collect();
    let ids: Vec<String> = reals
        .iter_mut()
        .map(|real| {
            real.ask(&["CLUSTER", "MYID"])
                .lines()
                .nth(1)
                .unwrap()
                .to_owned()
        })
        .collect();
    // `{b}` has slot 3300, which the first node stores. `a` has slot 15495.
    let slot = slot_of(b"b");
    assert_eq!((slot, slot_of(b"a")), (3_300, 15_495));
    let commands: [&[&str]; 14] = [
        &["CLUSTER", "KEYSLOT", "x{b}y"],
        &["GET", "{b}1"],
        &["GET", "{b}3"],
        &["GET", "a"],
        &["MGET", "{b}1", "{b}2"],
        &["MGET", "{b}1", "{b}3"],
        &["MGET", "{b}3", "{b}4"],
        &["MGET", "{b}1", "a"],
        &["EVAL", "return redis.call('GET', KEYS[1])", "1", "{b}1"],
        &["EVAL", "return redis.call('GET', KEYS[1])", "1", "{b}3"],
        &[
            "EVAL",
            "return redis.pcall('GET', ARGV[1]).err",
            "1",
            "{b}1",
            "a",
        ],
        &[
            "EVAL",
            "return redis.pcall('GET', ARGV[1]).err",
            "1",
            "{b}1",
            "{b}3",
        ],
        &["PUBLISH", "c", "x"],
        &["EVAL", "return 1", "2", "{b}1", "{b}3"],
    ];
    let compare = |reals: &mut Vec<Real>, simulated: &mut Vec<Simulated>, state: &str| {
        for command in commands {
            for (node, (real, simulated)) in reals.iter_mut().zip(&mut *simulated).enumerate() {
                for asks in [false, true] {
                    let (mut expected, mut found) = (String::new(), String::new());
                    if asks {
                        expected += &real.ask_at_once(&["ASKING"], command);
                        found += &simulated.ask(&["ASKING"]);
                        found += &simulated.ask(command);
                    } else {
                        expected += &real.ask(command);
                        found += &simulated.ask(command);
                    }
                    assert_eq!(expected, found, "{state}, node {node}, {asks}: {command:?}");
                }
            }
        }
    };
    for key in ["{b}1", "{b}2"] {
        assert_eq!(
            reals[0].ask(&["SET", key, "1"]),
            simulated[0].ask(&["SET", key, "1"])
        );
    }
    compare(&mut reals, &mut simulated, "before the move");
    // The slot is moving, and one of its keys has moved already.
    let number = slot.to_string();
    reals[1].ask(&["CLUSTER", "SETSLOT", &number, "IMPORTING", &ids[0]]);
    reals[0].ask(&["CLUSTER", "SETSLOT", &number, "MIGRATING", &ids[1]]);
    let view = simulated[1].redis.view().expect("the server is a node");
    view.importing.insert(slot, at(ports[0]));
    let view = simulated[0].redis.view().expect("the server is a node");
    view.migrating.insert(slot, at(ports[1]));
    compare(&mut reals, &mut simulated, "before a key has moved");
    let port = ports[1].to_string();
    let moved = reals[0].ask(&["MIGRATE", "127.0.0.1", &port, "{b}2", "0", "5000"]);
    assert_eq!(moved, "+OK\r\n");
    let moving = simulated[0]
        .redis
        .take("{b}2", NOW)
        .expect("the key exists");
    simulated[1].redis.put("{b}2", moving);
    compare(&mut reals, &mut simulated, "after a key has moved");
    // After the first node has given up slot 100, it knows no node that stores this slot.
    reals[0].ask(&["CLUSTER", "DELSLOTS", "100"]);
    let view = simulated[0].redis.view().expect("the server is a node");
    view.ranges[0].0 = 101;
    let unbound = (0..).map(|number| format!("k{number}"));
    let unbound = unbound
        .into_iter()
        .find(|key| slot_of(key.as_bytes()) == 100);
    let unbound = unbound.expect("each slot has keys");
    let command = ["GET", &unbound];
    assert_eq!(reals[0].ask(&command), simulated[0].ask(&command));
    // Since a slot has no primary, the node considers the cluster as down.
    until(async || {
        reals[0]
            .ask(&["CLUSTER", "INFO"])
            .contains("cluster_state:fail")
    })
    .await;
    simulated[0]
        .redis
        .view()
        .expect("the server is a node")
        .is_up = false;
    for command in [
        &["GET", "{b}1"][..],
        &["GET", &unbound],
        &["EVAL", "return 1", "1", "{b}1"],
        &[
            "EVAL",
            "return redis.pcall('GET', ARGV[1]).err",
            "0",
            "{b}1",
        ],
        &["PUBLISH", "c", "x"],
        &["PING"],
    ] {
        let replies = (reals[0].ask(command), simulated[0].ask(command));
        assert_eq!(replies.0, replies.1, "{command:?}");
    }
}

impl Real {
    /// Sends two commands, one right after the other, and returns both replies.
    fn ask_at_once(&mut self, first: &[&str], second: &[&str]) -> String {
        let bytes = [encode(first), encode(second), encode(&["ECHO", "end"])].concat();
        self.0.write_all(&bytes).expect("the server reads");
        self.until("$3\r\nend\r\n")
    }
}
