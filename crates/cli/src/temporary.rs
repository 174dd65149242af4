//! Temporary folders, removed when the tool ends, unless it is killed.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::{fs, io};

use tidegate_net::identity::{hex, random};
use tidegate_net::os;

/// The folders that exist.
static FOLDERS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// A folder that only its owner can enter, removed when dropped.
pub struct Temporary(PathBuf);

impl Temporary {
    /// Creates a folder; `purpose` is part of its name.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn new(purpose: &str) -> io::Result<Temporary> {
        let path = std::env::temp_dir().join(format!("tidegate-{purpose}-{}", hex(&random::<6>())));
        os::private_directory()?.create(&path)?;
        FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).insert(path.clone());
        Ok(Temporary(path))
    }
}

impl Deref for Temporary {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
        FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

/// Removes all of them. Call it before the process exits without dropping them.
pub fn remove_all() {
    for path in &*FOLDERS.lock().unwrap_or_else(PoisonError::into_inner) {
        let _ = fs::remove_dir_all(path);
    }
}
