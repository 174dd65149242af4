# `make test` sets up what it needs and runs every test; `make lint` is part of it.
.PHONY: test lint setup bench columnar deny

test: lint
	cargo test --workspace --quiet

lint: setup
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings

# Formatter and lints are components of Rust that a minimal installation lacks.
setup:
	@cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 || rustup component add rustfmt clippy

bench:
	cargo bench --workspace

# Reads the bottleneck's Parquet files with pandas and polars.
columnar:
	cargo run --release -- run scenarios/bottleneck.toml
	python3 -m venv .venv && .venv/bin/pip install --quiet pandas polars pyarrow
	.venv/bin/python crates/cli/tests/columnar.py out/bottleneck

# Needs `cargo install cargo-deny`.
deny:
	cargo deny check licenses bans sources
