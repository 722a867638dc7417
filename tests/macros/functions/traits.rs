//! Methods of traits, with and without `#[async_trait]`.

use std::{rc::Rc, sync::Arc};

use async_trait::async_trait;
use lock_runtime::{LockError, distributed_lock};
use support::guarded::{guarded, stay};

use crate::Locked;

struct Daily {
    name: String,
}

fn daily() -> Daily {
    Daily { name: "a".into() }
}

trait Report {
    fn name(&self) -> &str;

    #[distributed_lock(key = "report:<day>")]
    async fn default_body(&self, day: u64) -> Locked<String> {
        stay().await;
        Ok(format!("{}{day}", self.name()))
    }

    #[distributed_lock(key = "report:<day>")]
    async fn overridden(&mut self, day: u64) -> Locked<u64> {
        Ok(day)
    }

    async fn implemented(&self, day: &str) -> Locked<&str>;

    async fn by_value(self, day: u64) -> Locked<String>
    where
        Self: Sized;

    fn desugared(&self, day: u64) -> impl Future<Output = Locked<u64>> + Send;

    #[distributed_lock(key = "report:<day>", guard = hold)]
    fn desugared_default(&self, day: u64) -> impl Future<Output = Locked<String>> + Send
    where
        Self: Sync,
    {
        let name = self.name().to_owned();
        async move {
            stay().await;
            let granted = hold.token().get() > 0;
            Ok(format!("{name}{day}{granted}"))
        }
    }
}

impl Report for Daily {
    fn name(&self) -> &str {
        &self.name
    }

    #[distributed_lock(key = "report:<self.name>:<day>")]
    async fn overridden(&mut self, day: u64) -> Locked<u64> {
        self.name.push('b');
        stay().await;
        Ok(day + self.name.len() as u64)
    }

    #[distributed_lock(key = "report:<self.name>:<day>")]
    async fn implemented(&self, day: &str) -> Locked<&str> {
        stay().await;
        let _ = day;
        Ok(&self.name)
    }

    #[distributed_lock(key = "report:<self.name>:<day>")]
    async fn by_value(self, day: u64) -> Locked<String> {
        stay().await;
        Ok(self.name)
    }

    #[distributed_lock(key = "report:<day>")]
    async fn desugared(&self, day: u64) -> Locked<u64> {
        stay().await;
        Ok(day)
    }
}

#[tokio::test]
async fn a_default_body() {
    guarded("report:7", Ok("a7".into()), async || {
        Report::default_body(&daily(), 7).await
    })
    .await;
}

#[tokio::test]
async fn native_async_methods() {
    guarded("report:a:7", Ok(9), async || daily().overridden(7).await).await;
    guarded("report:a:7", Ok("a".to_owned()), async || {
        daily().implemented("7").await.map(str::to_owned)
    })
    .await;
    guarded("report:a:7", Ok("a".into()), async || {
        Report::by_value(daily(), 7).await
    })
    .await;
    guarded("report:7", Ok(7), async || daily().desugared(7).await).await;
    guarded("report:7", Ok("a7true".into()), async || {
        daily().desugared_default(7).await
    })
    .await;
}

#[async_trait]
trait Shop: Send + Sync {
    async fn by_reference(&self, id: u64, text: &str) -> Locked<String>;

    async fn by_exclusive_reference(&mut self, mut id: u64) -> Locked<&mut String>;

    async fn by_value(self, id: String) -> Result<String, LockError>
    where
        Self: Sized;

    async fn by_arc(self: Arc<Self>, pair: (u64, u64)) -> Locked<u64>;

    async fn by_box(self: Box<Self>) -> Locked<String>;

    async fn without_self(id: u64) -> Locked<u64>
    where
        Self: Sized;

    async fn generic<T: ToString + Send + 'static>(&self, id: u64, value: T) -> Locked<String>
    where
        Self: Sized;

    #[distributed_lock(key = "default:<id>")]
    async fn default_body(&self, id: u64) -> Locked<String> {
        stay().await;
        self.by_name(id).await
    }

    #[distributed_lock(key = "default:<id>")]
    async fn default_that_is_overridden(&self, id: u64) -> Locked<u64> {
        Ok(id)
    }

    async fn by_name(&self, id: u64) -> Locked<String>;
}

#[async_trait]
impl Shop for Daily {
    #[distributed_lock(key = "<self.name>:<id>:<text>")]
    async fn by_reference(&self, id: u64, text: &str) -> Locked<String> {
        stay().await;
        Ok(format!("{}{id}{text}", self.name))
    }

    #[distributed_lock(key = "<self.name>:<id>")]
    async fn by_exclusive_reference(&mut self, mut id: u64) -> Locked<&mut String> {
        id += 1;
        stay().await;
        self.name.push_str(&id.to_string());
        Ok(&mut self.name)
    }

    #[distributed_lock(key = "<self.name>:<id>")]
    async fn by_value(self, id: String) -> Result<String, LockError> {
        stay().await;
        Ok(self.name + &id)
    }

    #[distributed_lock(key = "arc:<self.name>", guard = hold)]
    async fn by_arc(self: Arc<Self>, (a, mut b): (u64, u64)) -> Locked<u64> {
        stay().await;
        b += u64::from(hold.token().get() > 0);
        Ok(a + b)
    }

    #[distributed_lock(key = "box:<self.name>")]
    async fn by_box(self: Box<Self>) -> Locked<String> {
        stay().await;
        Ok(self.name)
    }

    #[distributed_lock(key = "static:<id>")]
    async fn without_self(id: u64) -> Locked<u64> {
        stay().await;
        Ok(id)
    }

    #[distributed_lock(key = "generic:<id>")]
    async fn generic<T: ToString + Send + 'static>(&self, id: u64, value: T) -> Locked<String> {
        stay().await;
        let text = value.to_string();
        if id == 0 {
            return Ok(text);
        }
        Ok(text + &self.name)
    }

    #[distributed_lock(key = "overriding:<id>")]
    async fn default_that_is_overridden(&self, id: u64) -> Locked<u64> {
        stay().await;
        Ok(id)
    }

    async fn by_name(&self, id: u64) -> Locked<String> {
        Ok(format!("{}{id}", self.name))
    }
}

#[tokio::test]
async fn async_trait_methods() {
    guarded("a:7:b", Ok("a7b".into()), async || {
        daily().by_reference(7, "b").await
    })
    .await;
    guarded("a:7", Ok("a8".to_owned()), async || {
        daily().by_exclusive_reference(7).await.cloned()
    })
    .await;
    guarded("a:b", Ok("ab".into()), async || {
        Shop::by_value(daily(), "b".into()).await
    })
    .await;
    guarded("arc:a", Ok(4), async || {
        Arc::new(daily()).by_arc((1, 2)).await
    })
    .await;
    guarded("box:a", Ok("a".into()), async || {
        Box::new(daily()).by_box().await
    })
    .await;
    guarded("static:7", Ok(7), async || Daily::without_self(7).await).await;
    guarded("generic:7", Ok("1a".into()), async || {
        daily().generic(7, 1).await
    })
    .await;
}

#[tokio::test]
async fn async_trait_default_bodies() {
    guarded("default:7", Ok("a7".into()), async || {
        Shop::default_body(&daily(), 7).await
    })
    .await;
    guarded("overriding:7", Ok(7), async || {
        daily().default_that_is_overridden(7).await
    })
    .await;
}

#[async_trait]
trait Named: Send + Sync {
    async fn named(&self, id: u64) -> Locked<String>;
}

#[async_trait]
impl<T: Shop> Named for T {
    #[distributed_lock(key = "object:<id>")]
    async fn named(&self, id: u64) -> Locked<String> {
        stay().await;
        self.by_name(id).await
    }
}

#[tokio::test]
async fn async_trait_objects() {
    let object: Box<dyn Named> = Box::new(daily());
    guarded("object:7", Ok("a7".into()), async || object.named(7).await).await;
}

#[async_trait(?Send)]
trait Local {
    #[distributed_lock(key = "local:<id>")]
    async fn default_body(&self, id: Rc<str>) -> Locked<Rc<str>> {
        let kept = id.clone();
        stay().await;
        Ok(kept)
    }

    async fn implemented(&self, id: u64) -> Locked<u64>;
}

#[async_trait(?Send)]
impl Local for Rc<Daily> {
    #[distributed_lock(key = "local:<self.name>:<id>")]
    async fn implemented(&self, id: u64) -> Locked<u64> {
        let this = self.clone();
        stay().await;
        Ok(id + this.name.len() as u64)
    }
}

#[tokio::test]
async fn async_trait_without_send() {
    guarded("local:b", Ok(Rc::from("b")), async || {
        Rc::new(daily()).default_body("b".into()).await
    })
    .await;
    guarded("local:a:7", Ok(8), async || {
        Local::implemented(&Rc::new(daily()), 7).await
    })
    .await;
}
