//! RocksDB, through the C interface of the system's library. The library is loaded when it is used,
//! so that it is not needed to build this program.

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;

use super::terms::{CACHE_BYTES, Folder, Terms};
use crate::baselines::library::{Library, NotLoaded};
use crate::error::Failure;
use crate::subject::store::{Result, Store};
use crate::subject::{Found, Place, Size, Survives};

type Object = *mut c_void;
type Bytes = *const c_char;
type Fault = *mut *mut c_char;

/// Declares the functions of `rocksdb/c.h` that are used here, without the prefix `rocksdb_`.
macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        struct Api {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Api {
            fn find(library: Library) -> std::result::Result<Self, NotLoaded> {
                $(
                    let name = concat!("rocksdb_", stringify!($name), "\0");
                    let name = CStr::from_bytes_with_nul(name.as_bytes()).expect("ends with zero");
                    let address = library.address(name)?.as_ptr();
                    // SAFETY: the type is the one that RocksDB's header gives the function of this
                    // name.
                    let $name = unsafe {
                        std::mem::transmute::<
                            Object,
                            unsafe extern "C" fn($($argument),*) $(-> $result)?,
                        >(address)
                    };
                )*
                Ok(Api { $($name,)* })
            }
        }
    };
}

functions! {
    options_create: fn() -> Object;
    options_destroy: fn(Object);
    options_set_create_if_missing: fn(Object, c_uchar);
    options_set_compression: fn(Object, c_int);
    options_increase_parallelism: fn(Object, c_int);
    options_set_block_based_table_factory: fn(Object, Object);
    block_based_options_create: fn() -> Object;
    block_based_options_destroy: fn(Object);
    block_based_options_set_filter_policy: fn(Object, Object);
    block_based_options_set_block_cache: fn(Object, Object);
    filterpolicy_create_bloom: fn(f64) -> Object;
    cache_create_lru: fn(usize) -> Object;
    cache_destroy: fn(Object);
    open: fn(Object, Bytes, Fault) -> Object;
    close: fn(Object);
    readoptions_create: fn() -> Object;
    readoptions_destroy: fn(Object);
    writeoptions_create: fn() -> Object;
    writeoptions_destroy: fn(Object);
    writeoptions_set_sync: fn(Object, c_uchar);
    get_pinned: fn(Object, Object, Bytes, usize, Fault) -> Object;
    pinnableslice_value: fn(Object, *mut usize) -> Bytes;
    pinnableslice_destroy: fn(Object);
    put: fn(Object, Object, Bytes, usize, Bytes, usize, Fault);
    delete: fn(Object, Object, Bytes, usize, Fault);
    writebatch_create: fn() -> Object;
    writebatch_destroy: fn(Object);
    writebatch_put: fn(Object, Bytes, usize, Bytes, usize);
    write: fn(Object, Object, Object, Fault);
    create_iterator: fn(Object, Object) -> Object;
    iter_destroy: fn(Object);
    iter_seek: fn(Object, Bytes, usize);
    iter_valid: fn(Object) -> c_uchar;
    iter_next: fn(Object);
    iter_key: fn(Object, *mut usize) -> Bytes;
    iter_value: fn(Object, *mut usize) -> Bytes;
    iter_get_error: fn(Object, Fault);
    free: fn(Object);
}

/// The library, loaded once.
fn api() -> Result<&'static Api> {
    static API: OnceLock<std::result::Result<Api, String>> = OnceLock::new();
    let load = || {
        let names = ["librocksdb.so", "librocksdb.so.7.8"];
        // SAFETY: the initialisers of the system's library.
        let open = |name: &&str| unsafe { Library::open(Path::new(name)) };
        let library = names.iter().map(&open).find(std::result::Result::is_ok);
        let library = library.unwrap_or_else(|| open(&names[0])).map_err(|error| {
            format!("{error}; on Debian, `apt-get install librocksdb-dev` brings librocksdb")
        })?;
        Api::find(library).map_err(|error| error.to_string())
    };
    API.get_or_init(load).as_ref().map_err(|why| Failure::from(why.as_str()))
}

// SAFETY (all calls of the library below): objects were made by the library and are destroyed once,
// in `drop` or before the function returns; pointers with lengths are slices that live during the
// call; every error that the library allocates is freed by `checked`.
pub(super) struct RocksDb {
    api: &'static Api,
    database: NonNull<c_void>,
    reading: Object,
    writing: Object,
    bulk: Object,
    cache: Object,
    folder: Folder,
    survives: Survives,
}

// SAFETY: RocksDB allows all operations from any thread at the same time; the option objects are
// never changed.
unsafe impl Send for RocksDb {}
// SAFETY: as above.
unsafe impl Sync for RocksDb {}

/// Calls `call` with a place for an error, and returns the error if there is one.
fn checked<R>(api: &Api, call: impl FnOnce(Fault) -> R) -> Result<R> {
    let mut fault = null_mut();
    let result = call(&raw mut fault);
    if fault.is_null() {
        return Ok(result);
    }
    // SAFETY: a terminated string, which the library has allocated.
    let text = unsafe { CStr::from_ptr(fault) }.to_string_lossy().into_owned();
    // SAFETY: freed once, by the library that allocated it.
    unsafe { (api.free)(fault.cast()) };
    Err(text.into())
}

fn bytes(slice: &[u8]) -> Bytes {
    slice.as_ptr().cast()
}

/// Returns bytes that the library lends.
///
/// # Safety
///
/// `start` points to `len` bytes that live and do not change as long as the result is used.
unsafe fn lent<'a>(start: Bytes, len: usize) -> &'a [u8] {
    // SAFETY: promised by the caller.
    unsafe { std::slice::from_raw_parts(start.cast(), len) }
}

impl RocksDb {
    pub(super) fn open(terms: Terms) -> Result<Self> {
        let Terms { folder, survives, .. } = terms;
        let api = api()?;
        let path = CString::new(folder.path.as_os_str().as_bytes())?;
        // SAFETY: see above. The table options take ownership of the filter, and the database
        // copies the options.
        unsafe {
            let options = (api.options_create)();
            (api.options_set_create_if_missing)(options, 1);
            // No compression, because values are random.
            (api.options_set_compression)(options, 0);
            (api.options_increase_parallelism)(options, 2);
            let table = (api.block_based_options_create)();
            (api.block_based_options_set_filter_policy)(
                table,
                (api.filterpolicy_create_bloom)(10.0),
            );
            let cache = (api.cache_create_lru)(CACHE_BYTES as usize);
            (api.block_based_options_set_block_cache)(table, cache);
            (api.options_set_block_based_table_factory)(options, table);
            let opened = checked(api, |fault| (api.open)(options, path.as_ptr(), fault));
            (api.block_based_options_destroy)(table);
            (api.options_destroy)(options);
            let database = opened
                .and_then(|database| NonNull::new(database).ok_or_else(|| "no database".into()))
                .inspect_err(|_| (api.cache_destroy)(cache))?;
            let (reading, writing) = ((api.readoptions_create)(), (api.writeoptions_create)());
            (api.writeoptions_set_sync)(writing, c_uchar::from(survives == Survives::Power));
            let bulk = (api.writeoptions_create)();
            Ok(RocksDb { api, database, reading, writing, bulk, cache, folder, survives })
        }
    }
}

impl RocksDb {
    /// Calls `each` with the value of `key`, which the library lends. Returns `false` if the key is
    /// absent.
    #[inline]
    fn pinned(&self, key: &[u8], each: impl FnOnce(&[u8])) -> Result<bool> {
        let (api, database) = (self.api, self.database.as_ptr());
        // SAFETY: see above; the value is used before the slice that lends it is destroyed.
        unsafe {
            let slice = checked(api, |fault| {
                (api.get_pinned)(database, self.reading, bytes(key), key.len(), fault)
            })?;
            if slice.is_null() {
                return Ok(false);
            }
            let mut len = 0;
            let start = (api.pinnableslice_value)(slice, &raw mut len);
            each(lent(start, len));
            (api.pinnableslice_destroy)(slice);
        }
        Ok(true)
    }
}

impl Drop for RocksDb {
    fn drop(&mut self) {
        let api = self.api;
        // SAFETY: see above.
        unsafe {
            (api.close)(self.database.as_ptr());
            (api.readoptions_destroy)(self.reading);
            (api.writeoptions_destroy)(self.writing);
            (api.writeoptions_destroy)(self.bulk);
            (api.cache_destroy)(self.cache);
        }
    }
}

impl Store for RocksDb {
    /// Lookups read the newest state, without a snapshot.
    type Reader<'a> = ();

    fn reader(&self) -> Result<()> {
        Ok(())
    }

    fn get(&self, key: &[u8], (): &(), value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        self.pinned(key, |found| value.extend_from_slice(found))
    }

    fn lend(&self, keys: &[&[u8]], (): &(), each: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        for (place, key) in keys.iter().enumerate() {
            self.pinned(key, |found| each(place, found))?;
        }
        Ok(())
    }

    fn can_lend(&self) -> bool {
        true
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<Found> {
        let (api, database) = (self.api, self.database.as_ptr());
        // SAFETY: see above.
        checked(api, |fault| unsafe {
            (api.put)(
                database,
                self.writing,
                bytes(key),
                key.len(),
                bytes(value),
                value.len(),
                fault,
            );
        })?;
        Ok(Found::Unsaid)
    }

    fn load(&self, pairs: &[(&[u8], &[u8])]) -> Result<()> {
        let (api, database) = (self.api, self.database.as_ptr());
        // SAFETY: see above; the batch copies what is put into it.
        unsafe {
            let batch = (api.writebatch_create)();
            for (key, value) in pairs {
                (api.writebatch_put)(batch, bytes(key), key.len(), bytes(value), value.len());
            }
            let written = checked(api, |fault| (api.write)(database, self.bulk, batch, fault));
            (api.writebatch_destroy)(batch);
            written
        }
    }

    fn remove(&self, key: &[u8]) -> Result<Found> {
        let (api, database) = (self.api, self.database.as_ptr());
        // SAFETY: see above.
        checked(api, |fault| unsafe {
            (api.delete)(database, self.writing, bytes(key), key.len(), fault);
        })?;
        Ok(Found::Unsaid)
    }

    fn scan(
        &self,
        from: &[u8],
        count: usize,
        (): &(),
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let (api, database) = (self.api, self.database.as_ptr());
        // SAFETY: see above; key and value are lent until the iterator moves, which happens after
        // `each`.
        unsafe {
            let at = (api.create_iterator)(database, self.reading);
            (api.iter_seek)(at, bytes(from), from.len());
            for _ in 0..count {
                if (api.iter_valid)(at) == 0 {
                    break;
                }
                let (mut key_len, mut value_len) = (0, 0);
                let key = (api.iter_key)(at, &raw mut key_len);
                let value = (api.iter_value)(at, &raw mut value_len);
                each(lent(key, key_len), lent(value, value_len));
                (api.iter_next)(at);
            }
            let ended = checked(api, |fault| (api.iter_get_error)(at, fault));
            (api.iter_destroy)(at);
            ended
        }
    }

    fn is_ordered(&self) -> bool {
        true
    }

    /// RocksDB only estimates the number of keys.
    fn size(&self) -> Result<Size> {
        Ok(Size { pm_bytes: Some(self.folder.bytes()?), ..Size::default() })
    }

    fn place(&self) -> Place {
        self.folder.place(self.survives)
    }
}
