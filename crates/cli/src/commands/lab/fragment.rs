//! Options of tor that a user adds to one side of an experiment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate_lab::input::{InputError, SourceFile};
use tidegate_lab::scenario::parameters_of_2024;

use crate::failure::Failure;

/// Options that describe the network itself, in lower case. Both sides have the same network.
const OF_THE_LAB: [&str; 50] = [
    "address",
    "alternatebridgeauthority",
    "alternatedirauthority",
    "assumereachable",
    "authoritativedirectory",
    "avoiddiskwrites",
    "bridge",
    "bridgeauthoritativedir",
    "bridgerelay",
    "cachedirectory",
    "clientonly",
    "clienttransportplugin",
    "controlport",
    "controlsocket",
    "datadirectory",
    "dirauthority",
    "dircache",
    "dirport",
    "disablenetwork",
    "dnsport",
    "entrynodes",
    "excludeexitnodes",
    "excludenodes",
    "exitnodes",
    "exitpolicy",
    "exitpolicyrejectprivate",
    "exitrelay",
    "fallbackdir",
    "hiddenservicedir",
    "hiddenserviceport",
    "httpsproxy",
    "keydirectory",
    "middlenodes",
    "nickname",
    "orport",
    "outboundbindaddress",
    "pathsneededtobuildcircuits",
    "publishserverdescriptor",
    "reducedexitpolicy",
    "runasdaemon",
    "sandbox",
    "socks4proxy",
    "socks5proxy",
    "socksport",
    "strictnodes",
    "testingtornetwork",
    "transport",
    "usebridges",
    "useentryguards",
    "user",
];

/// Why options of Conflux are refused.
const NO_CONFLUX: &str =
    "does not have an effect: each client has one guard and one middle, and linked circuits need two";

/// One line of a torrc.
#[derive(Clone, Debug)]
pub struct TorOption {
    /// The option as the user wrote it.
    pub name: String,
    pub value: String,
    /// Place of the line in the file, in bytes.
    span: std::ops::Range<usize>,
}

/// The options of one side.
#[derive(Clone, Debug)]
pub struct Fragment {
    source: SourceFile,
    /// Options other than `ConsensusParams`.
    pub options: Vec<TorOption>,
    /// Parameters of the consensus: those of 2024, then those of the fragment.
    pub parameters: BTreeMap<String, i32>,
    /// The parameters that the fragment sets.
    set: BTreeMap<String, std::ops::Range<usize>>,
}

impl Fragment {
    /// The side without additional options.
    pub fn empty() -> Fragment {
        let source = SourceFile { file: "no options".into(), text: String::new() };
        Fragment { source, options: Vec::new(), parameters: parameters_of_2024(), set: BTreeMap::new() }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If the file cannot be read, or sets an option that the lab sets.
    pub fn read(path: Option<&PathBuf>) -> Result<Fragment, InputError> {
        path.map_or(Ok(Fragment::empty()), |path| Fragment::parse(SourceFile::read(path)?))
    }

    /// Reads a text.
    ///
    /// # Errors
    /// If it sets an option that the lab sets.
    pub fn parse(source: SourceFile) -> Result<Fragment, InputError> {
        let mut fragment = Fragment { source, ..Fragment::empty() };
        let mut start = 0;
        for raw in fragment.source.text.clone().split_inclusive('\n') {
            let line = raw.split('#').next().unwrap_or_default().trim();
            let begin = start + raw.find(|c: char| !c.is_whitespace()).unwrap_or(0);
            start += raw.len();
            let (name, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            if !name.is_empty() {
                let option = TorOption {
                    name: name.to_owned(),
                    value: value.trim().to_owned(),
                    span: begin..begin + line.len(),
                };
                fragment.add(option)?;
            }
        }
        Ok(fragment)
    }

    fn add(&mut self, option: TorOption) -> Result<(), InputError> {
        let refuse = |cause: &str, cure: &str| {
            Err(self.source.error(option.span.clone(), format!("`{}` {cause}", option.name), cure))
        };
        let name = option.name.trim_start_matches(['+', '/']).to_lowercase();
        if option.value.ends_with('\\') {
            return refuse("continues on the next line", "write the option on one line");
        }
        match name.as_str() {
            "%include" => refuse("is not read", "copy the options of that file into this one"),
            "confluxenabled" | "confluxclientux" => refuse(NO_CONFLUX, "drop the line"),
            "consensusparams" => self.add_parameters(&option),
            _ if OF_THE_LAB.contains(&name.as_str())
                || name.starts_with("testing")
                || name.contains("v3auth") =>
            {
                refuse("describes the network, which is the same on both sides", "drop the line")
            }
            _ => {
                self.options.push(option);
                Ok(())
            }
        }
    }

    fn add_parameters(&mut self, option: &TorOption) -> Result<(), InputError> {
        for pair in option.value.trim_matches('"').split_whitespace() {
            let parsed = pair.split_once('=').and_then(|(name, value)| Some((name, value.parse().ok()?)));
            let Some((name, value)) = parsed else {
                let cause = format!("`{pair}` is not a consensus parameter");
                let cure = "write NAME=NUMBER, such as cc_alg=2, with spaces between";
                return Err(self.source.error(option.span.clone(), cause, cure));
            };
            if name.starts_with("cfx_") {
                let cause = format!("`{name}` {NO_CONFLUX}");
                return Err(self.source.error(option.span.clone(), cause, "drop the parameter"));
            }
            self.parameters.insert(name.to_owned(), value);
            self.set.insert(name.to_owned(), option.span.clone());
        }
        Ok(())
    }

    /// The names of the parameters that the fragment sets.
    pub fn parameters_set(&self) -> impl Iterator<Item = &String> {
        self.set.keys()
    }

    /// The error that this option causes.
    pub fn refuse(&self, option: &TorOption, cause: impl Into<String>, cure: &str) -> InputError {
        self.source.error(option.span.clone(), cause, cure)
    }

    /// The error that this parameter causes.
    pub fn refuse_parameter(&self, name: &str, cause: impl Into<String>, cure: &str) -> InputError {
        self.source.error(self.set.get(name).cloned().unwrap_or(0..0), cause, cure)
    }

    /// Whether both give tor the same options.
    pub fn equals(&self, other: &Fragment) -> bool {
        self.torrc() == other.torrc() && self.parameters == other.parameters
    }

    /// The options as lines of a torrc.
    pub fn torrc(&self) -> String {
        self.options.iter().map(|TorOption { name, value, .. }| format!("{name} {value}\n")).collect()
    }

    /// The parameters as the authority's option.
    pub fn consensus_params(&self) -> String {
        let pairs: Vec<String> =
            self.parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
        format!("ConsensusParams cfx_enabled=0 {}\n", pairs.join(" "))
    }

    /// Lets tor check the options, without running it.
    ///
    /// # Errors
    /// If tor refuses an option, with its message.
    pub fn verify(&self, tor: &Path, folder: &Path) -> Result<(), Failure> {
        let torrc = folder.join("fragment.torrc");
        let text =
            format!("DataDirectory {}\nSocksPort 0\n{}", folder.join("fragment").display(), self.torrc());
        std::fs::write(&torrc, text).map_err(Failure::other)?;
        let mut command = Command::new(tor);
        command.args(["--verify-config", "--defaults-torrc", "/dev/null", "-f"]).arg(&torrc);
        let output = command.output().map_err(Failure::other)?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let wrong = |line: &&str| line.contains("[warn]") && !line.contains("Reading config failed");
        let said = text.lines().rfind(wrong).unwrap_or("tor refuses the options");
        let said = said.split_once("[warn] ").map_or(said, |(_, said)| said);
        let cure = "correct the option; `man tor` lists all";
        Err(InputError::new(&self.source.file, format!("tor says: {said}"), cure).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Fragment, InputError> {
        Fragment::parse(SourceFile { file: "side.torrc".into(), text: text.into() })
    }

    #[test]
    fn options_and_parameters_are_read() {
        let text =
            "# one side\nSchedulers Vanilla  # not KIST\n\n  ConsensusParams cc_alg=0 circwindow=500\n";
        let fragment = parse(text).unwrap();
        assert_eq!(fragment.torrc(), "Schedulers Vanilla\n");
        assert_eq!(fragment.parameters["cc_alg"], 0);
        // Parameters that the fragment does not name keep their values.
        assert_eq!(fragment.parameters["cc_vegas_alpha_exit"], 186);
        assert!(fragment.consensus_params().contains(" circwindow=500"));
        assert_eq!(parse("").unwrap().parameters["cc_alg"], 2);
    }

    #[test]
    fn options_of_the_network_are_refused_at_their_place() {
        for (text, line, said) in [
            ("Schedulers Vanilla\nORPort 9001\n", 2, "same on both sides"),
            ("ORPORT auto\n", 1, "same on both sides"),
            ("+DirAuthority x\n", 1, "same on both sides"),
            ("TestingV3AuthInitialVotingInterval 300\n", 1, "same on both sides"),
            ("%include /etc/tor/torrc\n", 1, "not read"),
            ("ConfluxEnabled 1\n", 1, "does not have an effect"),
            ("ConsensusParams cc_alg=2 cfx_enabled=1\n", 1, "does not have an effect"),
            ("ConsensusParams cc_alg\n", 1, "not a consensus parameter"),
            ("ConsensusParams cc_alg=2.5\n", 1, "not a consensus parameter"),
            ("ConsensusParams cc_alg=99999999999\n", 1, "not a consensus parameter"),
            ("NumCPUs \\\n 2\n", 1, "continues"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.cause.contains(said), "{text}: {error}");
            assert_eq!(error.at.map(|(line, _)| line), Some(line), "{text}");
        }
    }
}
