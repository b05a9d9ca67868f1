//! Tables from shared libraries: an index in C, or in any language with a C interface, can be
//! measured beside the others without changing either.
//!
//! `evermap lab run micro --plugin ./mine.so --index mine,dash-eh`. The interface is
//! `crates/evermap-lab/plugin/evermap_lab_plugin.h`, with an example in C beside it.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use evermap_pm::{ErrorKind, Result};

use crate::LabError;
use crate::baselines::library::Library;
use crate::subject::{Entry, Found, Guards, Measured, Setup, Size, Subject, Table};

/// The version of the interface.
const ABI: u32 = 1;
/// The number of plugins that can be loaded.
const SLOTS: usize = 8;

/// What a plugin's `evermap_lab_plugin` returns: `struct evermap_lab_plugin` of the header, field
/// by field.
#[repr(C)]
struct Interface {
    abi: u32,
    name: *const c_char,
    about: *const c_char,
    create: Option<unsafe extern "C" fn(*const CSetup) -> *mut c_void>,
    destroy: Option<unsafe extern "C" fn(*mut c_void)>,
    insert: Option<unsafe extern "C" fn(*mut c_void, u64, u64) -> c_int>,
    get: Option<unsafe extern "C" fn(*mut c_void, u64, *mut u64) -> c_int>,
    update: Option<unsafe extern "C" fn(*mut c_void, u64, u64, *mut u64) -> c_int>,
    remove: Option<unsafe extern "C" fn(*mut c_void, u64, *mut u64) -> c_int>,
    get_many:
        Option<unsafe extern "C" fn(*mut c_void, *const u64, *mut u64, *mut u8, usize) -> c_int>,
    scan: Option<unsafe extern "C" fn(*mut c_void, u64, *mut u64, *mut u64, usize) -> isize>,
    len: Option<unsafe extern "C" fn(*mut c_void) -> u64>,
    bytes: Option<unsafe extern "C" fn(*mut c_void) -> u64>,
    load_factor: Option<unsafe extern "C" fn(*mut c_void) -> f64>,
    error: Option<unsafe extern "C" fn(c_int) -> *const c_char>,
}

/// `struct evermap_lab_setup` of the header.
#[repr(C)]
struct CSetup {
    keys: u64,
    presize: c_int,
    directory: *const c_char,
}

/// A plugin whose interface was checked.
#[derive(Clone, Copy)]
struct Plugin {
    name: &'static str,
    about: &'static str,
    path: &'static Path,
    calls: Calls,
}

/// The functions that every plugin has, and those that are optional.
#[derive(Clone, Copy)]
struct Calls {
    create: unsafe extern "C" fn(*const CSetup) -> *mut c_void,
    destroy: unsafe extern "C" fn(*mut c_void),
    insert: unsafe extern "C" fn(*mut c_void, u64, u64) -> c_int,
    get: unsafe extern "C" fn(*mut c_void, u64, *mut u64) -> c_int,
    update: unsafe extern "C" fn(*mut c_void, u64, u64, *mut u64) -> c_int,
    remove: unsafe extern "C" fn(*mut c_void, u64, *mut u64) -> c_int,
    get_many:
        Option<unsafe extern "C" fn(*mut c_void, *const u64, *mut u64, *mut u8, usize) -> c_int>,
    scan: Option<unsafe extern "C" fn(*mut c_void, u64, *mut u64, *mut u64, usize) -> isize>,
    len: Option<unsafe extern "C" fn(*mut c_void) -> u64>,
    bytes: Option<unsafe extern "C" fn(*mut c_void) -> u64>,
    load_factor: Option<unsafe extern "C" fn(*mut c_void) -> f64>,
    error: Option<unsafe extern "C" fn(c_int) -> *const c_char>,
}

static LOADED: [OnceLock<Plugin>; SLOTS] = [const { OnceLock::new() }; SLOTS];
/// Held while a plugin is registered.
static LOADING: Mutex<()> = Mutex::new(());

/// Loads a plugin. Returns its name; loading a file twice has no further effect.
///
/// # Safety
///
/// The library's code runs in this process: it must keep the promises of the header.
///
/// # Errors
///
/// `Plugin` if it cannot be loaded, has another version, lacks a function, or has a name that
/// `is_taken`.
pub(crate) unsafe fn load(
    path: &Path,
    is_taken: &dyn Fn(&str) -> bool,
) -> Result<&'static str, LabError> {
    let refused = |why: String| LabError::Plugin { path: path.to_owned(), why };
    let _loading = LOADING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let absolute = std::fs::canonicalize(path).map_err(|source| LabError::Io {
        action: "load",
        path: Some(path.to_owned()),
        source,
    })?;
    if let Some(known) = loaded().find(|plugin| plugin.path == absolute) {
        return Ok(known.name);
    }
    let library =
        // SAFETY: the caller vouches for the library's code.
        unsafe { Library::open(&absolute) }.map_err(|error| refused(error.to_string()))?;
    let entry = library
        .address(c"evermap_lab_plugin")
        .map_err(|error| refused(format!("{error}; see evermap_lab_plugin.h")))?;
    let entry: unsafe extern "C" fn() -> *const Interface =
        // SAFETY: the header gives this function exactly this type, and the caller vouches for the
        // library.
        unsafe { std::mem::transmute(entry.as_ptr()) };
    // SAFETY: a function without arguments that the caller vouches for.
    let interface = unsafe { entry() };
    let interface =
        // SAFETY: if it is not null, the header promises that it stays valid; libraries are never
        // unloaded.
        unsafe { interface.as_ref() }.ok_or_else(|| refused("it offers no interface".into()))?;
    if interface.abi != ABI {
        return Err(refused(format!(
            "it has version {} of the interface, and this program has version {ABI}",
            interface.abi
        )));
    }
    let plugin = Plugin::new(interface, absolute).map_err(refused)?;
    if is_taken(plugin.name) {
        return Err(refused(format!("there is an index `{}` already", plugin.name)));
    }
    let free = LOADED.iter().find(|slot| slot.get().is_none());
    let slot = free.ok_or_else(|| refused(format!("{SLOTS} plugins are loaded already")))?;
    Ok(slot.get_or_init(|| plugin).name)
}

fn loaded() -> impl Iterator<Item = &'static Plugin> {
    LOADED.iter().filter_map(OnceLock::get)
}

/// Returns the entries of all loaded plugins.
pub(crate) fn entries() -> Vec<Entry> {
    let entry = |plugin: &Plugin| Entry {
        name: plugin.name,
        about: plugin.about,
        rival: true,
        factory: build,
    };
    loaded().map(entry).collect()
}

fn build(name: &'static str, setup: &Setup) -> Result<Box<dyn Subject>, LabError> {
    let plugin = loaded().find(|plugin| plugin.name == name);
    let plugin = plugin.expect("an entry exists only for a loaded plugin");
    setup.words_only(name)?;
    let table = Foreign::new(plugin, setup)?;
    Ok(Box::new(Measured { name, table, guards: Guards::PerOperation }))
}

impl Plugin {
    fn new(interface: &Interface, path: PathBuf) -> Result<Self, String> {
        let lacks = |what: &str| format!("it lacks the function `{what}`");
        let calls = Calls {
            create: interface.create.ok_or_else(|| lacks("create"))?,
            destroy: interface.destroy.ok_or_else(|| lacks("destroy"))?,
            insert: interface.insert.ok_or_else(|| lacks("insert"))?,
            get: interface.get.ok_or_else(|| lacks("get"))?,
            update: interface.update.ok_or_else(|| lacks("update"))?,
            remove: interface.remove.ok_or_else(|| lacks("remove"))?,
            get_many: interface.get_many,
            scan: interface.scan,
            len: interface.len,
            bytes: interface.bytes,
            load_factor: interface.load_factor,
            error: interface.error,
        };
        let name = text(interface.name).ok_or("it has no name")?;
        let about = text(interface.about).unwrap_or("a plugin");
        let path: &'static Path = Box::leak(path.into_boxed_path());
        Ok(Plugin { name, about, path, calls })
    }
}

/// Returns a string of the plugin, which the plugin never frees, or `None` if there is none.
fn text(string: *const c_char) -> Option<&'static str> {
    if string.is_null() {
        return None;
    }
    // SAFETY: the header promises a terminated string that stays valid.
    unsafe { CStr::from_ptr(string) }.to_str().ok().filter(|text| !text.is_empty())
}

/// The table of a plugin.
struct Foreign {
    plugin: &'static Plugin,
    table: *mut c_void,
}

// SAFETY: the header demands that all functions but `create` and `destroy` may be called by any
// thread at any time, and those two are called while no other thread uses the table.
unsafe impl Send for Foreign {}
// SAFETY: as above.
unsafe impl Sync for Foreign {}

impl Foreign {
    fn new(plugin: &'static Plugin, setup: &Setup) -> Result<Self, LabError> {
        use std::os::unix::ffi::OsStrExt;
        let directory = std::ffi::CString::new(setup.location.as_os_str().as_bytes())
            .map_err(|_| LabError::Config("the location contains a zero byte".into()))?;
        let setup = CSetup {
            keys: setup.keys,
            presize: c_int::from(setup.presize),
            directory: directory.as_ptr(),
        };
        // SAFETY: `setup` and its string live during the call, and the header says that `create`
        // may not use them afterwards.
        let table = unsafe { (plugin.calls.create)(&raw const setup) };
        if table.is_null() {
            return Err(LabError::Plugin {
                path: plugin.path.to_owned(),
                why: "it could not create a table".into(),
            });
        }
        Ok(Foreign { plugin, table })
    }

    /// Returns `true` for present (1), `false` for absent (0), and an error for negative results.
    #[inline(always)]
    fn present(&self, answer: c_int) -> Result<bool> {
        if answer < 0 {
            return Err(self.failed(answer));
        }
        Ok(answer != 0)
    }

    #[cold]
    fn failed(&self, answer: c_int) -> evermap_pm::Error {
        // SAFETY: a function of the plugin, called with a result of another of its functions.
        let said = self.plugin.calls.error.and_then(|error| text(unsafe { error(answer) }));
        let source = std::io::Error::other(match said {
            Some(said) => format!("{said} ({answer})"),
            None => format!("result {answer}"),
        });
        ErrorKind::Io { action: "an operation", path: self.plugin.path.to_owned(), source }.into()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: made by `create`, destroyed once, and not used by any other thread any more.
        unsafe { (self.plugin.calls.destroy)(self.table) };
    }
}

// SAFETY (all calls below): `table` was made by this plugin's `create` and is not destroyed yet;
// pointers are to variables or slices that live during the call and have the lengths that are
// passed.
impl Table for Foreign {
    /// A plugin protects its readers itself.
    type Guard<'a> = ();

    #[inline(always)]
    fn guard(&self) {}

    #[inline(always)]
    fn insert(&self, key: u64, word: u64, (): &()) -> Result<Found> {
        // SAFETY: see above.
        let answer = unsafe { (self.plugin.calls.insert)(self.table, key, word) };
        Ok(if self.present(answer)? { Found::Present } else { Found::Absent })
    }

    #[inline(always)]
    fn get(&self, key: u64, (): &()) -> Result<Option<u64>> {
        let mut word = 0;
        // SAFETY: see above.
        let answer = unsafe { (self.plugin.calls.get)(self.table, key, &raw mut word) };
        Ok(self.present(answer)?.then_some(word))
    }

    fn get_many(&self, keys: &[u64], out: &mut [Option<u64>], (): &()) -> Result<()> {
        let Some(get_many) = self.plugin.calls.get_many else {
            for (key, out) in keys.iter().zip(&mut out[..keys.len()]) {
                *out = self.get(*key, &())?;
            }
            return Ok(());
        };
        let (mut words, mut found) = (vec![0u64; keys.len()], vec![0u8; keys.len()]);
        // SAFETY: see above.
        let answer = unsafe {
            get_many(self.table, keys.as_ptr(), words.as_mut_ptr(), found.as_mut_ptr(), keys.len())
        };
        self.present(answer)?;
        for ((word, found), out) in words.iter().zip(&found).zip(&mut out[..keys.len()]) {
            *out = (*found != 0).then_some(*word);
        }
        Ok(())
    }

    #[inline(always)]
    fn update(&self, key: u64, word: u64, (): &()) -> Result<Found> {
        let mut old = 0;
        // SAFETY: see above.
        let answer = unsafe { (self.plugin.calls.update)(self.table, key, word, &raw mut old) };
        Ok(if self.present(answer)? { Found::Word(old) } else { Found::Absent })
    }

    #[inline(always)]
    fn remove(&self, key: u64, (): &()) -> Result<Found> {
        let mut old = 0;
        // SAFETY: see above.
        let answer = unsafe { (self.plugin.calls.remove)(self.table, key, &raw mut old) };
        Ok(if self.present(answer)? { Found::Word(old) } else { Found::Absent })
    }

    fn scan(
        &self,
        from: u64,
        count: usize,
        (): &(),
        each: &mut dyn FnMut(u64, u64),
    ) -> Result<bool> {
        let Some(scan) = self.plugin.calls.scan else { return Ok(false) };
        let (mut keys, mut words) = (vec![0u64; count], vec![0u64; count]);
        // SAFETY: see above.
        let answer =
            unsafe { scan(self.table, from, keys.as_mut_ptr(), words.as_mut_ptr(), count) };
        let Ok(found) = usize::try_from(answer) else {
            return Err(self.failed(answer as c_int));
        };
        // No more than fits into the buffers, whatever the plugin returns.
        keys.iter().zip(&words).take(found).for_each(|(&key, &word)| each(key, word));
        Ok(true)
    }

    fn is_ordered(&self) -> bool {
        self.plugin.calls.scan.is_some()
    }

    fn size(&self) -> Result<Size> {
        let calls = &self.plugin.calls;
        Ok(Size {
            // SAFETY: see above.
            len: calls.len.map(|len| unsafe { len(self.table) }),
            // SAFETY: see above.
            load_factor: calls.load_factor.map(|load_factor| unsafe { load_factor(self.table) }),
            // SAFETY: see above.
            dram_bytes: calls.bytes.map(|bytes| unsafe { bytes(self.table) }),
            ..Size::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Config, Quiet};
    use crate::experiments::drive;
    use crate::registry::load_plugin;
    use crate::testing::Kept;
    use std::process::Command;

    /// A library in its own directory, which is removed at the end; what was loaded stays loaded.
    struct Compiled(PathBuf);

    impl Compiled {
        fn library(&self) -> PathBuf {
            self.0.join("plugin.so")
        }
    }

    impl Drop for Compiled {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn compile(name: &str, source: &str) -> Compiled {
        let folder = format!("lab-plugin-{}-{name}", std::process::id());
        let compiled = Compiled(std::env::temp_dir().join(folder));
        std::fs::create_dir_all(&compiled.0).unwrap();
        let code = compiled.0.join("plugin.c");
        std::fs::write(&code, source).unwrap();
        let done = Command::new("cc")
            .args([
                "-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC", "-pthread",
            ])
            .arg(concat!("-I", env!("CARGO_MANIFEST_DIR"), "/plugin"))
            .arg("-o")
            .args([&compiled.library(), &code])
            .output()
            .expect("a C compiler is installed");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        compiled
    }

    const EXAMPLE: &str = include_str!("../../../plugin/open_addressing.c");

    #[test]
    fn the_example_passes_as_any_table() {
        let compiled = compile("example", EXAMPLE);
        let library = compiled.library();
        // SAFETY: the example of this crate.
        let name = unsafe { load_plugin(&library) }.unwrap();
        assert_eq!(name, "open-addressing");
        // SAFETY: as above.
        let again = unsafe { load_plugin(&library) }.unwrap();
        assert_eq!(again, name, "loading it again does nothing");
        for (threads, presize) in [(1, false), (3, true)] {
            let config = Config {
                indexes: vec![name.to_owned()],
                keys: 20_000,
                threads,
                presize,
                rounds: 1,
                quiet: Quiet::NOT_NEEDED,
                limits: false,
                ..Config::default()
            };
            let driven = drive(&config, &mut Kept::default()).unwrap();
            let summary = &driven.subjects[0].phases[0].summary;
            assert!(summary.load_factor.unwrap() > 0.2 && summary.dram_bytes.unwrap() > 320_000);
        }
    }

    /// The checks of the driver apply to plugins too.
    #[test]
    fn a_plugin_that_lies_fails_the_run() {
        let lying = EXAMPLE.replace("\"open-addressing\"", "\"forgetful\"").replace(
            "if (slot) *word = slot->word;",
            "if (slot) *word = slot->word + (key % 1000 == 0);",
        );
        // SAFETY: the example of this crate, with wrong answers.
        let name = unsafe { load_plugin(&compile("forgetful", &lying).library()) }.unwrap();
        let config = Config {
            indexes: vec![name.to_owned()],
            keys: 20_000,
            rounds: 1,
            quiet: Quiet::NOT_NEEDED,
            ..Config::default()
        };
        let error = drive(&config, &mut Kept::default()).unwrap_err();
        assert!(matches!(error, LabError::WrongAnswer { index: "forgetful", .. }), "{error}");
        let failing = EXAMPLE.replace("\"open-addressing\"", "\"failing\"").replace(
            "int answer = find(shard, key, h) != NULL;",
            "int answer = key % 1000 == 0 ? -1 : find(shard, key, h) != NULL;",
        );
        // SAFETY: the example of this crate, with failures.
        let name = unsafe { load_plugin(&compile("failing", &failing).library()) }.unwrap();
        let config = Config { indexes: vec![name.to_owned()], ..config };
        let error = drive(&config, &mut Kept::default()).unwrap_err().to_string();
        assert!(
            error.contains("failing failed") && error.contains("no memory for a larger table (-1)"),
            "{error}"
        );
    }

    #[test]
    fn what_is_no_plugin_is_refused_with_the_reason() {
        // SAFETY: the example of this crate, changed so that only its interface is read.
        let refused = |path: &Path| unsafe { load_plugin(path) }.unwrap_err().to_string();
        let changed = |name: &str, from: &str, to: &str| {
            let named = EXAMPLE.replace("\"open-addressing\"", &format!("\"{name}\""));
            refused(&compile(name, &named.replace(from, to)).library())
        };
        assert!(
            changed("newer", ".abi = EVERMAP_LAB_ABI", ".abi = 99")
                .contains("version 99 of the interface")
        );
        let lacking = changed("lacking", ".update = update,", ".update = 0 ? update : NULL,");
        assert!(lacking.contains("lacks the function `update`"), "{lacking}");
        let taken = EXAMPLE.replace("\"open-addressing\"", "\"dash-eh\"");
        assert!(
            refused(&compile("taken", &taken).library())
                .contains("there is an index `dash-eh` already")
        );
        let other = refused(
            &compile("other", "int nothing(void); int nothing(void) { return 0; }").library(),
        );
        assert!(other.contains("evermap_lab_plugin.h"), "{other}");
        assert!(
            refused(Path::new("/no/such/library.so")).starts_with("load /no/such/library.so: ")
        );
        let text = std::env::temp_dir().join(format!("lab-text-{}", std::process::id()));
        std::fs::write(&text, "no library").unwrap();
        let error = refused(&text);
        std::fs::remove_file(&text).unwrap();
        assert!(error.contains("file too short") || error.contains("invalid ELF"), "{error}");
    }
}
