// Each form of the values of `permits` and `take`.
#![deny(warnings)]

use async_trait::async_trait;
use lock_runtime::{LockClient, LockError, distributed_lock};

type Done = Result<(), LockError>;

const GPUS: u32 = 8;

mod limits {
    pub(crate) static GPUS: u32 = 8;

    pub(crate) async fn gpus(host: &str) -> Result<u32, lock_runtime::LockError> {
        Ok(host.len() as u32)
    }
}

struct Host {
    name: String,
    gpus: u32,
}

struct Pair(u32, u32);

#[distributed_lock(key = "smtp", permits = 10, wait = "2s")]
async fn literal() -> Done {
    Ok(())
}

#[distributed_lock(key = "smtp", take = 0x2, permits = 1_000u32, strategy = spin, guard = hold, namespace = "shop")]
async fn all_forms_of_literals() -> Result<u64, LockError> {
    Ok(hold.token().get())
}

#[distributed_lock(key = "gpu:<host>", permits = GPUS, take = jobs)]
async fn only_in_the_options(host: &str, jobs: u32) -> Done {
    Ok(())
}

#[distributed_lock(key = "gpu:<host>", permits = limits::GPUS, take = jobs.min(2) + 1)]
async fn expression(host: String, mut jobs: u32) -> Result<(String, u32), LockError> {
    jobs += 1;
    Ok((host, jobs))
}

#[distributed_lock(key = "gpu:<host>", permits = limits::gpus(host).await?, take = *left)]
async fn awaited(host: &str, Pair(left, _right): Pair) -> Done {
    Ok(())
}

#[distributed_lock(key = "gpu:<host>", permits = GPUS, take = jobs, on_busy = fallback(later))]
async fn with_a_fallback(host: String, jobs: u32) -> Result<String, LockError> {
    Ok(host + &jobs.to_string())
}

async fn later(host: String, _: u32, _: LockError) -> Result<String, LockError> {
    Ok(host)
}

#[distributed_lock(key = "gpu", permits = N, take = N)]
async fn generic<const N: u32>() -> Done {
    Ok(())
}

impl Host {
    const LEAST: u32 = 1;

    #[distributed_lock(key = "gpu:<self.name>", permits = self.gpus, take = Self::LEAST)]
    async fn train(&mut self) -> Done {
        self.gpus -= 1;
        Ok(())
    }
}

#[async_trait]
trait Trains {
    async fn train_on(&self, host: &str, jobs: u32) -> Done;
}

#[async_trait]
impl Trains for Host {
    #[distributed_lock(key = "gpu:<host>", permits = self.gpus, take = jobs)]
    async fn train_on(&self, host: &str, jobs: u32) -> Done {
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Done {
    let client = LockClient::connect("memory:").await.unwrap();
    let mut host = Host {
        name: "a".into(),
        gpus: 3,
    };
    let calls = async {
        literal().await?;
        assert!(all_forms_of_literals().await? > 0);
        only_in_the_options("a", 8).await?;
        assert_eq!(expression("a".into(), 5).await?, ("a".into(), 6));
        awaited("four", Pair(4, 0)).await?;
        assert_eq!(with_a_fallback("a".into(), 8).await?, "a8");
        generic::<5>().await?;
        host.train().await?;
        host.train_on("b", 2).await
    };
    client.scope(calls).await
}
