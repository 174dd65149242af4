//! The roles' configuration files: strict TOML, in which every quantity has its unit. Paths are relative to
//! the file they stand in.

mod coordinator;
mod fields;
mod measurer;
mod relay;

pub use coordinator::{CoordinatorConfig, MeasurerEntry, RelayEntry, Target};
pub use fields::ConfigError;
pub use measurer::MeasurerConfig;
pub use relay::{BackgroundConfig, RelayConfig};

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use tidegate_control::units::Rate;

    use super::*;
    use crate::identity::{Identity, hex, random};

    /// A directory with a configuration file and the identity it names.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Scratch {
            let path = std::env::temp_dir().join(format!("tidegate-config-{}", hex(&random::<8>())));
            std::fs::create_dir(&path).unwrap();
            Identity::generate().save(&path.join("c.key")).unwrap();
            Scratch(path)
        }
        fn with(&self, text: &str) -> PathBuf {
            let file = self.0.join("config.toml");
            std::fs::write(&file, text).unwrap();
            file
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const A: &str = "00000000000000000000000000000000000000000000000000000000000000aa";

    fn coordinator() -> String {
        format!(
            "identity = \"c.key\"\nstate = \"state\"\nbandwidth-file = \"v3bw\"\nbudget = \"2 Gbit/s\"\n\
             [parameters]\nduration = \"30 s\"\n\
             [[measurer]]\nname = \"m\"\naddress = \"127.0.0.1:1\"\nfingerprint = \"{A}\"\ncapacity = \"1 Gbit/s\"\n\
             [[relay]]\nnickname = \"r\"\naddress = \"127.0.0.1:2\"\nfingerprint = \"{A}\"\nonion-key = \"{A}\"\n"
        )
    }

    #[test]
    fn keys_that_others_can_read_are_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let scratch = Scratch::new();
        let (file, key) = (scratch.with(&coordinator()), scratch.0.join("c.key"));
        for (mode, fine) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o602, false)] {
            std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
            match CoordinatorConfig::load(&file) {
                Ok(_) => assert!(fine, "{mode:o}"),
                Err(error) => assert!(!fine && error.to_string().contains("chmod 600"), "{mode:o}: {error}"),
            }
        }
        std::fs::remove_file(&key).unwrap();
        let error = CoordinatorConfig::load(&file).unwrap_err().to_string();
        assert!(error.contains("c.key") && error.contains("keygen"), "{error}");
    }

    const STOCK: &str = "[[relay]]\nnickname = \"s\"\ntarget = \"stock\"\naddress = \"127.0.0.1:3\"\n\
        id = \"00000000000000000000000000000000000000bb\"\n\
        [stock]\nfar-end = \"00000000000000000000000000000000000000cc\"\nlisten = \"127.0.0.1:0\"\n\
        capacity = \"1 Gbit/s\"\n";

    #[test]
    fn good_files_are_read_and_paths_are_beside_them() {
        let scratch = Scratch::new();
        let config = CoordinatorConfig::load(&scratch.with(&coordinator())).unwrap();
        assert_eq!(config.identity, scratch.0.join("c.key"));
        assert_eq!(config.budget, Rate(1_000_000_000), "no more than the team has");
        let Target::Flashflow(fingerprint, _) = &config.relays[0].target else {
            panic!("flashflow is the default")
        };
        assert_eq!(config.relays[0].id[..], fingerprint[..20]);
        let stock = format!("{}{STOCK}", coordinator());
        let config = CoordinatorConfig::load(&scratch.with(&stock)).unwrap();
        assert_eq!(config.relays[1].target, Target::Stock);
        assert_eq!(config.stock.unwrap().clients, 8);
        let relay = format!(
            "listen = \"127.0.0.1:0\"\nidentity = \"c.key\"\nrate = \"10 Mbit/s\"\n\
             [measurement]\nallowed = true\ncoordinators = [\"{A}\"]\n"
        );
        assert_eq!(RelayConfig::load(&scratch.with(&relay)).unwrap().rate, Rate(10_000_000));
        let measurer = format!("listen = \"127.0.0.1:0\"\nidentity = \"c.key\"\ncoordinators = [\"{A}\"]\n");
        assert!(MeasurerConfig::load(&scratch.with(&measurer)).is_ok());
    }

    #[test]
    fn snake_case_keys_are_read_with_a_notice() {
        let scratch = Scratch::new();
        let old = coordinator().replace("bandwidth-file", "bandwidth_file").replace("onion-key", "onion_key");
        let config = CoordinatorConfig::load(&scratch.with(&old)).unwrap();
        assert_eq!(config.bandwidth_file, scratch.0.join("v3bw"));
        assert_eq!(config.notices.len(), 2, "{:?}", config.notices);
        assert!(config.notices[0].ends_with("config.toml:3: `bandwidth_file` is now `bandwidth-file`"));
        assert!(CoordinatorConfig::load(&scratch.with(&coordinator())).unwrap().notices.is_empty());
        // What is wrong is at its place, in the new words.
        let error = CoordinatorConfig::load(&scratch.with(&format!("bud_get = 1\n{old}"))).unwrap_err();
        assert!(error.to_string().contains("unknown field `bud-get`"), "{error}");
    }

    #[test]
    fn every_mistake_is_named() {
        let scratch = Scratch::new();
        let good = format!("{}{STOCK}", coordinator());
        for (from, to, says) in [
            ("budget = \"2 Gbit/s\"", "budget = 5", "invalid type"),
            ("budget = \"2 Gbit/s\"", "budget = \"5\"", "has no unit"),
            ("budget", "buget", "unknown field `buget`"),
            ("duration = \"30 s\"", "duration = \"601 s\"", "duration is not 1 s to 600 s"),
            ("duration = \"30 s\"", "duration = \"50 s\"", "slot is 1 min"),
            ("duration = \"30 s\"", "background-percent = 100", "not below 100"),
            ("duration = \"30 s\"", "multiplier = nan", "multiplier is not between"),
            ("fingerprint = \"00", "fingerprint = \"0", "expected 64 hexadecimal digits"),
            ("capacity = \"1 Gbit/s\"", "capacity = \"0 Gbit/s\"", "no capacity"),
            ("nickname = \"r\"", "nickname = \"r r\"", "not 1 to 19 letters"),
            ("127.0.0.1:2", "localhost", "invalid socket address"),
            ("[[measurer]]", "[[measurer", "line"),
            ("target = \"stock\"", "target = \"stok\"", "unknown variant `stok`"),
            ("target = \"stock\"", "", "lacks its fingerprint"),
            ("id = \"0", "# id = \"0", "needs its id"),
            ("[stock]", "[stock]\nclients = 65", "not between 1 and 64"),
        ] {
            assert!(good.contains(from), "{from}");
            let error = CoordinatorConfig::load(&scratch.with(&good.replacen(from, to, 1))).unwrap_err();
            assert!(error.to_string().contains(says), "{to}: {error}");
        }
        let good = coordinator();
        let twice = format!("{good}{}", &good[good.find("[[relay]]").unwrap()..]);
        assert!(
            CoordinatorConfig::load(&scratch.with(&twice)).unwrap_err().to_string().contains("listed twice")
        );
        let no_table = format!("{good}{}", &STOCK[..STOCK.find("[stock]").unwrap()]);
        let error = CoordinatorConfig::load(&scratch.with(&no_table)).unwrap_err().to_string();
        assert!(error.contains("there is no [stock]"), "{error}");
        for garbage in ["", "\u{0}\u{1}", "a", "[[relay]]"] {
            assert!(CoordinatorConfig::load(&scratch.with(garbage)).is_err());
            assert!(RelayConfig::load(&scratch.with(garbage)).is_err());
            assert!(MeasurerConfig::load(&scratch.with(garbage)).is_err());
        }
    }
}
