//! A map that three processes keep, and that survives the loss of one.
//!
//! ```sh
//! three-nodes node 1 /var/lib/one   localhost:7001 localhost:7002 localhost:7003 &
//! three-nodes node 2 /var/lib/two   localhost:7001 localhost:7002 localhost:7003 &
//! three-nodes node 3 /var/lib/three localhost:7001 localhost:7002 localhost:7003 &
//! three-nodes set color green       localhost:7001 localhost:7002 localhost:7003
//! three-nodes get color             localhost:7001 localhost:7002 localhost:7003
//! ```
//!
//! Kill one of them with `kill -9`: changes and reads go on, and it catches up when it is started
//! again. Kill two: nothing is changed or read until one of them is back, and nothing is lost.

mod client;
mod network;
mod node;
mod protocol;

use std::error::Error;
use std::io;
use std::time::Duration;

use client::Client;
use evermap_raft::kv::Request;

const USAGE: &str = "usage: three-nodes node ID FILE ADDRESS...
       three-nodes set KEY VALUE ADDRESS...
       three-nodes get KEY ADDRESS...
       three-nodes status ADDRESS...";

/// How often a client tries, a quarter of a second apart.
const ATTEMPTS: u32 = 20;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let client =
        |addresses: &[&str]| Client::new(addresses.iter().map(|a| (*a).to_owned()).collect());
    match &words[..] {
        ["node", id, file, addresses @ ..] if !addresses.is_empty() => {
            node::run(node::Settings {
                id: id.parse()?,
                file: file.into(),
                addresses: addresses.iter().map(|address| (*address).to_owned()).collect(),
                snapshot_every: 5000,
                in_memory: false,
            })
            .await?;
        }
        ["set", key, value, addresses @ ..] if !addresses.is_empty() => {
            set(&mut client(addresses), key, value).await?;
        }
        ["get", key, addresses @ ..] if !addresses.is_empty() => {
            match get(&mut client(addresses), key).await? {
                Some(value) => println!("{}", String::from_utf8_lossy(&value)),
                None => return Err(format!("there is no {key}").into()),
            }
        }
        ["status", addresses @ ..] if !addresses.is_empty() => {
            let mut client = client(addresses);
            for id in 1..=addresses.len() as u64 {
                println!("{id}: {:?}", client.status(id).await);
            }
        }
        _ => return Err(USAGE.into()),
    }
    Ok(())
}

/// Setting a value twice has no other effect than once, unless another client has changed it in
/// between.
async fn set(client: &mut Client, key: &str, value: &str) -> io::Result<()> {
    let request = Request::Set { key: key.into(), value: value.into() };
    for _ in 1..ATTEMPTS {
        if client.change(request.clone()).await.is_ok() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    client.change(request).await.map(|_| ())
}

async fn get(client: &mut Client, key: &str) -> io::Result<Option<Vec<u8>>> {
    for _ in 1..ATTEMPTS {
        if let Ok(value) = client.get(key.as_bytes()).await {
            return Ok(value);
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    client.get(key.as_bytes()).await
}
