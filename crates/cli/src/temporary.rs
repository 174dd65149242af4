//! Temporary folders, removed when the tool ends. If it is killed, its children remove them.

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

/// The folders that exist now.
pub fn all() -> Vec<PathBuf> {
    FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
}

/// Removes all of them. Call it before the process exits without dropping them.
pub fn remove_all() {
    for path in all() {
        let _ = fs::remove_dir_all(path);
    }
}
