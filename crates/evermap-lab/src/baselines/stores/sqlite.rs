//! SQLite, through the crate `rusqlite`: a table of one B-tree, with a write-ahead log.

use std::sync::{Mutex, PoisonError};

use rusqlite::{Connection, OptionalExtension, params};

use super::terms::{CACHE_BYTES, Folder, Terms};
use crate::subject::store::{Result, Store};
use crate::subject::{Found, Place, Size, Survives};

const GET: &str = "SELECT value FROM pairs WHERE key = ?1";
const PUT: &str = "INSERT OR REPLACE INTO pairs VALUES (?1, ?2)";
const REMOVE: &str = "DELETE FROM pairs WHERE key = ?1";
const SCAN: &str = "SELECT key, value FROM pairs WHERE key >= ?1 ORDER BY key LIMIT ?2";

pub(super) struct Sqlite {
    /// The only one that writes: a second one would wait with time-outs.
    writer: Mutex<Connection>,
    /// Those that no reader uses now.
    readers: Mutex<Vec<Connection>>,
    folder: Folder,
    survives: Survives,
}

/// A connection, which goes back when it is dropped.
pub(super) struct Reader<'a> {
    connection: Option<Connection>,
    of: &'a Sqlite,
}

impl Reader<'_> {
    fn connection(&self) -> &Connection {
        self.connection.as_ref().expect("until it is dropped")
    }

    fn get(&self, key: &[u8], each: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let mut statement = self.connection().prepare_cached(GET)?;
        let found = statement.query_row([key], |row| {
            each(row.get_ref(0)?.as_blob()?);
            Ok(())
        });
        Ok(found.optional()?.is_some())
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let connection = self.connection.take();
        self.of.readers.lock().unwrap_or_else(PoisonError::into_inner).extend(connection);
    }
}

impl Sqlite {
    pub(super) fn open(terms: Terms) -> Result<Self> {
        let Terms { folder, survives, .. } = terms;
        let writer = connect(&folder, survives)?;
        writer.execute(
            "CREATE TABLE IF NOT EXISTS pairs (key BLOB PRIMARY KEY, value BLOB NOT NULL) \
             WITHOUT ROWID",
            [],
        )?;
        Ok(Sqlite { writer: Mutex::new(writer), readers: Mutex::default(), folder, survives })
    }

    fn change<R>(&self, change: impl FnOnce(&mut Connection) -> Result<R>) -> Result<R> {
        let mut writer = self.writer.lock().map_err(|_| "another writer has panicked")?;
        change(&mut writer)
    }
}

/// Connects with the settings that make it fast: a log, a large cache, and a mapped file.
fn connect(folder: &Folder, survives: Survives) -> Result<Connection> {
    let connection = Connection::open(folder.path.join("sqlite"))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // Without syncs, what was written to the log is the system's, and survives a kill.
    let synchronous = if survives == Survives::Power { "FULL" } else { "OFF" };
    connection.pragma_update(None, "synchronous", synchronous)?;
    // A negative number counts KiB.
    connection.pragma_update(None, "cache_size", -i64::try_from(CACHE_BYTES >> 10)?)?;
    connection.pragma_update(None, "mmap_size", i64::try_from(CACHE_BYTES)?)?;
    Ok(connection)
}

impl Store for Sqlite {
    type Reader<'a> = Reader<'a>;

    fn reader(&self) -> Result<Reader<'_>> {
        let idle = self.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => connect(&self.folder, self.survives)?,
        };
        Ok(Reader { connection: Some(connection), of: self })
    }

    fn get(&self, key: &[u8], reader: &Reader<'_>, value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        reader.get(key, &mut |found| value.extend_from_slice(found))
    }

    fn lend(
        &self,
        keys: &[&[u8]],
        reader: &Reader<'_>,
        each: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<()> {
        for (place, key) in keys.iter().enumerate() {
            reader.get(key, &mut |found| each(place, found))?;
        }
        Ok(())
    }

    fn can_lend(&self) -> bool {
        true
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<Found> {
        self.change(|writer| {
            writer.prepare_cached(PUT)?.execute([key, value])?;
            Ok(Found::Unsaid)
        })
    }

    fn load(&self, pairs: &[(&[u8], &[u8])]) -> Result<()> {
        self.change(|writer| {
            let transaction = writer.transaction()?;
            {
                let mut statement = transaction.prepare_cached(PUT)?;
                for (key, value) in pairs {
                    statement.execute([key, value])?;
                }
            }
            Ok(transaction.commit()?)
        })
    }

    fn remove(&self, key: &[u8]) -> Result<Found> {
        self.change(|writer| {
            let removed = writer.prepare_cached(REMOVE)?.execute([key])?;
            Ok(if removed == 0 { Found::Absent } else { Found::Present })
        })
    }

    fn scan(
        &self,
        from: &[u8],
        count: usize,
        reader: &Reader<'_>,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let mut statement = reader.connection().prepare_cached(SCAN)?;
        let mut rows = statement.query(params![from, i64::try_from(count)?])?;
        while let Some(row) = rows.next()? {
            each(row.get_ref(0)?.as_blob()?, row.get_ref(1)?.as_blob()?);
        }
        Ok(())
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn size(&self) -> Result<Size> {
        let count = |writer: &mut Connection| {
            Ok(writer.query_row("SELECT count(*) FROM pairs", [], |row| row.get::<_, i64>(0))?)
        };
        let len = u64::try_from(self.change(count)?)?;
        Ok(Size { len: Some(len), pm_bytes: Some(self.folder.bytes()?), ..Size::default() })
    }

    fn place(&self) -> Place {
        self.folder.place(self.survives)
    }
}
