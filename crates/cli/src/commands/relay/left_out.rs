//! Reasons to leave options of tor out of a relay's configuration.

/// A reason to leave options out, and their names. A name that ends with `*` stands for all
/// options that begin with it; names are in lower case.
struct Group {
    why: &'static str,
    /// Whether 0 turns the options off, so that nothing is lost.
    is_off_at_zero: bool,
    options: &'static [&'static str],
}

const fn group(why: &'static str, options: &'static [&'static str]) -> Group {
    Group { why, is_off_at_zero: false, options }
}

/// Options of functions that a relay of Tidegate never has.
const fn absent(why: &'static str, options: &'static [&'static str]) -> Group {
    Group { why, is_off_at_zero: true, options }
}

/// The groups. The first one with a name counts.
const GROUPS: &[Group] = &[
    absent(
        "under tor it makes this torrc that of a client, which is no relay; the configuration made here is a relay's",
        &["clientonly"],
    ),
    absent(
        "the relay has no control port; its status page, signals and log replace it",
        &[
            "controlport*",
            "controlsocket*",
            "cookieauth*",
            "hashedcontrolpassword",
            "__controlport",
            "__hashedcontrolsessionpassword",
            "__owningcontroller*",
            "__reloadtorrconsighup",
            "testingenablecellstatsevent",
            "testingenableconnbwevent",
        ],
    ),
    absent(
        "the relay is neither a bridge nor has it pluggable transports",
        &[
            "bridgedistribution",
            "bridgepassword",
            "bridgerecordusagebycountry",
            "bridgerelay",
            "extorport*",
            "__extorport",
            "servertransport*",
            "outboundbindaddresspt",
            "testingbridge*",
            "clienttransportplugin",
        ],
    ),
    absent(
        "it acts only in directory authorities",
        &[
            "authdir*",
            "authoritativedirectory",
            "bridgeauthoritativedir",
            "consensusparams",
            "guardfractionfile",
            "minimalacceptedserverversion",
            "minmeasuredbwsforauthtoignoreadvertised",
            "minuptimehidservdirectoryv2",
            "recommended*",
            "testingauthdir*",
            "testingdirauth*",
            "testingminexitflagthreshold",
            "testingminfastflagthreshold",
            "testingv3*",
            "v3*",
            "versioningauthoritativedirectory",
        ],
    ),
    group(
        "the defence of onion services acts in introduction points by the consensus alone",
        &["hiddenserviceenableintrodos*"],
    ),
    group("the relay publishes no such statistics", &["hiddenservicestatistics"]),
    absent(
        "the relay hosts no onion services",
        &["hiddenservice*", "publishhidservdescriptors", "compiledproofofworkhash"],
    ),
    absent(
        "it acts only in clients; `tidegate client` is a process of its own",
        &[
            "__alldiractionsprivate",
            "__disablepredictedcircuits",
            "__dnsport",
            "__httptunnelport",
            "__leavestreamsunattached",
            "__natdport",
            "__socksport",
            "__transport",
            "__alwayscongestioncontrol",
            "__sbwsexit",
            "allownonrfc953hostnames",
            "automaphosts*",
            "bridge",
            "circuitbuildtimeout",
            "circuitsavailabletimeout",
            "circuitstreamtimeout",
            "client*",
            "confluxclientux",
            "dnsport",
            "dormant*",
            "enforcedistinctsubnets",
            "entrynodes",
            "excludeexitnodes",
            "excludenodes",
            "exitnodes",
            "extendbyed25519id",
            "fascistfirewall",
            "fetchhidservdescriptors",
            "firewallports",
            "guardlifetime",
            "hslayer*",
            "httptunnelport",
            "learncircuitbuildtimeout",
            "longlivedports",
            "mapaddress",
            "maxcircuitdirtiness",
            "maxclientcircuitspending",
            "middlenodes",
            "natdport",
            "newcircuitperiod",
            "nodefamily",
            "numdirectoryguards",
            "numentryguards",
            "numprimaryguards",
            "pathbias*",
            "pathsneededtobuildcircuits",
            "reachable*",
            "reconfigdropsbridgedescs",
            "reducedcircuitpadding",
            "reducedconnectionpadding",
            "rejectplaintextports",
            "safesocks",
            "socksp*",
            "sockstimeout",
            "strictnodes",
            "testingclient*",
            "testsocks",
            "trackhostexits*",
            "transport",
            "transproxytype",
            "unixsocksgroupwritable",
            "updatebridgesfromauthority",
            "usebridges",
            "useentryguards",
            "useguardfraction",
            "vanguardsliteenabled",
            "virtualaddrnetwork*",
            "warnplaintextports",
        ],
    ),
    absent(
        "the service manager does this (packaging/systemd has a sandboxed unit)",
        &[
            "__disablesignalhandlers",
            "disableallswap",
            "disabledebuggerattachment",
            "keepbindcapabilities",
            "noexec",
            "pidfile",
            "runasdaemon",
            "sandbox",
            "syslogidentitytag",
            "user",
        ],
    ),
    group(
        "the log goes to standard output; --log and --log-format of the command line set it",
        &[
            "heartbeatperiod",
            "log",
            "logmessagedomains",
            "logtimegranularity",
            "mainloopstats",
            "maxunparseabledescsizetolog",
            "protocolwarnings",
            "truncatelogfile",
        ],
    ),
    group("the log never has addresses of clients or destinations", &["safelogging"]),
    group(
        "the relay publishes no such statistics",
        &[
            "cellstatistics",
            "conndirectionstatistics",
            "dirreqstatistics",
            "entrystatistics",
            "exitportstatistics",
            "extrainfostatistics",
            "geoip*",
            "overloadstatistics",
            "paddingstatistics",
            "rephisttracktime",
        ],
    ),
    absent(
        "the relay has no directory port; directory documents come from the network's authority",
        &["__dirport", "dirport*", "dirpolicy", "testingdirconnectionmaxstall"],
    ),
    group(
        "directory documents come from the network's authority, and the relay keeps none of them on disk",
        &[
            "avoiddiskwrites",
            "cachedirectory*",
            "dircache",
            "downloadextrainfo",
            "fetch*",
            "maxconsensusagefordiffs",
            "testingserver*",
            "usemicrodescriptors",
        ],
    ),
    group("a relay keeps at most 16,384 descriptors of onion services in 128 MiB", &["maxhsdircachebytes"]),
    group(
        "the relay knows only the authorities of [tor]",
        &[
            "alternatebridgeauthority",
            "alternatedirauthority",
            "dirallowprivateaddresses",
            "dirauthorityfallbackrate",
            "fallbackdir",
            "usedefaultfallbackdirs",
        ],
    ),
    group("the system's resolver answers names, by /etc/resolv.conf", &["serverdns*"]),
    absent(
        "the relay connects directly, not by a proxy",
        &["httpproxy*", "httpsproxy*", "socks4proxy", "socks5proxy*", "tcpproxy"],
    ),
    group("connections leave by the address that the system's routes choose", &["outboundbindaddress*"]),
    group("the relay does not count traffic by period; `bandwidth` limits its rate", &["accounting*"]),
    group("the bucket of `bandwidth` holds 0.1 s of it", &["bandwidthburst", "relaybandwidthburst"]),
    group("one bucket limits all connections together", &["perconnbw*"]),
    group("all bytes of cells count for `bandwidth`, private addresses' too", &["countprivatebandwidth"]),
    group("the bucket of `bandwidth` is refilled every 10 ms", &["tokenbucketrefillinterval"]),
    group(
        "tor keeps its Ed25519 identity in an expanded form that a key file of Tidegate cannot hold: `tidegate relay --keygen` \
         draws another identity",
        &["datadirectory*", "keydirectory*", "offlinemasterkey"],
    ),
    group(
        "link keys last as long as `link` of [key-lifetimes] says",
        &["sslkeylifetime", "testinglinkcertlifetime"],
    ),
    group(
        "keys are renewed when a tenth of their lifetime remains",
        &["testinglinkkeyslop", "testingsigningkeyslop", "testingauthkey*"],
    ),
    group("the relay does not try whether others reach it", &["assumereachable*"]),
    group("the relay publishes the addresses of `address` and looks for no others", &["addressdisableipv6"]),
    group(
        "`limits.connections` bounds connections, and half of the descriptors of files",
        &["connlimit", "disableooscheck"],
    ),
    group("the kernel sizes the buffers of sockets", &["constrainedsock*"]),
    group("cryptography selects the processor's instructions itself", &["hardwareaccel", "accel*"]),
    group(
        "[system] selects the scheduler; see the page of combinations",
        &["circuitpriorityhalflife", "kist*", "schedulers"],
    ),
    group(
        "the relay sends no padding to other relays and drops theirs",
        &["circuitpadding", "connectionpadding", "keepaliveperiod"],
    ),
    group("a relay accepts linked circuits if its circuits have congestion control", &["confluxenabled"]),
    group(
        "a full queue of handshakes is bounded by `handshakes-per-second` and `handshake-burst` of [limits]",
        &["maxonionqueuedelay"],
    ),
    group("SIGHUP changes the policy of new streams only", &["reevaluateexitpolicy"]),
    group(
        "an exit refuses streams of circuits that come from a client, by the address of the connection",
        &["refuseunknownexits"],
    ),
    group("an exit always refuses the relay's own addresses", &["exitpolicyrejectlocalinterfaces"]),
    group(
        "the page listens on loopback, and answers this machine alone",
        &["metricsportpolicy", "__metricsport"],
    ),
    group("a relay that should not run is not started", &["disablenetwork"]),
    group("a relay announces only `listen` and `address`", &["__orport"]),
    group("the relay reports its bandwidth from the start", &["testingmintimetoreportbandwidth"]),
];

fn stands_for(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => pattern == name,
    }
}

fn group_of(option: &str) -> Option<&'static Group> {
    let name = option.to_lowercase();
    GROUPS.iter().find(|group| group.options.iter().any(|pattern| stands_for(pattern, &name)))
}

/// Why a relay leaves an option out; `None` for an option that is read or that tor 0.4.9 does not know.
pub(super) fn why(option: &str) -> Option<&'static str> {
    group_of(option).map(|group| group.why)
}

/// Whether the option turns off what a relay of Tidegate never does, so that nothing is lost.
pub(super) fn loses_nothing(option: &str, value: &str) -> bool {
    value == "0" && group_of(option).is_some_and(|group| group.is_off_at_zero)
}
