# Prints the consensus at the given path, decompressed, as stem's strict parser reads it.
import calendar, json, sys
from stem.descriptor import DocumentHandler, parse_file

path, flavour = sys.argv[1:]
kind = {"ns": "network-status-consensus-3 1.0", "microdesc": "network-status-microdesc-consensus-3 1.0"}[flavour]
with open(path, "rb") as file:
    document = next(parse_file(file, kind, document_handler=DocumentHandler.DOCUMENT, validate=True))
relays = [
    {
        "nickname": relay.nickname,
        "identity": relay.fingerprint,
        "address": f"{relay.address}:{relay.or_port}",
        "flags": sorted(relay.flags),
        "bandwidth": relay.bandwidth,
        "unmeasured": relay.is_unmeasured,
        "version": relay.version_line,
    }
    for relay in document.routers.values()
]
json.dump(
    {
        "valid_after": calendar.timegm(document.valid_after.timetuple()),
        "params": document.params,
        "bandwidth_weights": document.bandwidth_weights,
        "relays": relays,
    },
    sys.stdout,
)
