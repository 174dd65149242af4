use super::*;
use crate::input::SourceFile;

struct Unwatched;
impl Monitor for Unwatched {}

/// Ten relays of the built-in model with eight users; `ends` are further keys of the users.
fn scenario(ends: &str) -> Scenario {
    let text = format!(
        "duration = \"30 s\"\nwarmup = \"5 s\"\nsample = \"1 s\"\ntrace-one-in = 0\n\
        [[system]]\nname = \"vegas\"\ncontrol = \"vegas\"\n\
        [[system]]\nname = \"conflux\"\ncontrol = \"vegas\"\nconflux = \"throughput\"\n\
        [tor]\nrelays = 10\nbandwidth-factor = 0.02\n\
        [traffic.page]\nrequests = [{{ size = \"100 KiB\" }}]\npause = [\"1 s\", \"6 s\"]\n\
        [[user]]\nname = \"user\"\ncount = 8\ntraffic = \"page\"\nstart = [\"0 s\", \"5 s\"]\n{ends}\n"
    );
    let source = SourceFile { file: "pages.toml".into(), text };
    Scenario::parse(source, Default::default(), &[]).unwrap()
}

#[test]
fn pages_are_matched_by_their_pauses_and_linked_circuits_show_a_part_each() {
    let observed = observed(&scenario("own-server = true"), 1, Span::from_secs(1), &Unwatched).unwrap();
    let views = |(_, ends): &(Run, Ends)| {
        [ends.by_guard(ends.bins(), 0.01), ends.by_client(ends.bins(), 0.01)].map(Option::unwrap)
    };
    let [alone, linked] = [views(&observed[0]), views(&observed[1])];
    assert_eq!((alone[0].flows, alone[0].pairs), (8, 56), "each user has one guard and one server");
    assert_eq!(alone[0], alone[1], "with one guard both observers see the same");
    assert!(alone[0].top > 3.0 * alone[0].chance && alone[0].coefficient > 0.5, "{alone:?}");
    assert!(linked[0].flows > 8 && linked[1].flows == 8, "{linked:?}");
    assert!(linked[0].coefficient < linked[1].coefficient, "{linked:?}");
    assert!(observed[0].1.relays_packets() > 1000);
}

#[test]
fn users_that_share_a_server_are_refused() {
    let refused = observed(&scenario(""), 1, Span::from_secs(1), &Unwatched);
    let Err(RunError::Input(error)) = refused else { panic!("one server has several users") };
    assert!(error.cause.contains("several users use `server1`"), "{error}");
    assert!(error.cure.contains("own-server"), "{error}");
}
