//! Tests: the configurations in the documentation are accepted as they are written.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tidegate_net::flashflow::{ConfigFile as _, CoordinatorConfig, MeasurerConfig};
use tidegate_net::identity::Identity;
use tidegate_net::live::keys;
use toml::Table;

/// The `toml` blocks of a page.
fn blocks(page: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let text = fs::read_to_string(path).unwrap();
    let begun = text.split("```toml\n").skip(1);
    begun.map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// A folder with the key files that the samples name.
fn folder() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("tidegate-documented-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    keys::create(&folder.join("relay.keys")).unwrap();
    for name in ["flashflow.key", "measurer.key", "coordinator.key"] {
        Identity::generate().save(&folder.join(name)).unwrap();
    }
    let family = folder.join("tide.secret_family_key");
    fs::write(&family, [&b"== ed25519v1-secret: fmly-id ==\0"[..], &[9; 64]].concat()).unwrap();
    fs::set_permissions(&family, fs::Permissions::from_mode(0o600)).unwrap();
    folder
}

/// Samples with `nickname` are complete. The others are parts of a relay's configuration.
#[test]
fn samples_are_accepted_as_they_are_written() {
    let folder = folder();
    let file = folder.join("sample.toml");
    let (mut complete, mut parts) = (0, 0);
    for page in ["live.md", "live-reference.md", "flashflow-operation.md"] {
        for block in blocks(page) {
            let table: Table = toml::from_str(&block).unwrap();
            let has = |key: &str| table.contains_key(key);
            let head = "nickname = \"a\"\nlisten = \"127.0.0.1:0\"\nkeys = \"relay.keys\"\n";
            let is_part = !has("nickname") && !has("identity");
            fs::write(&file, if is_part { format!("{head}{block}") } else { block.clone() }).unwrap();
            let refused = match () {
                () if has("measurer") => CoordinatorConfig::load(&file).err().map(|why| why.to_string()),
                () if has("identity") => MeasurerConfig::load(&file).err().map(|why| why.to_string()),
                () => super::load(&file, false).err().map(|why| why.to_string()),
            };
            assert_eq!(refused, None, "{page}: {block}");
            *(if is_part { &mut parts } else { &mut complete }) += 1;
        }
    }
    fs::remove_dir_all(&folder).unwrap();
    assert!(complete >= 5 && parts >= 3, "{complete} samples and {parts} parts");
}
