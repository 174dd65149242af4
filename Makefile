# `make test` sets up what it needs and runs every test; `make lint` is part of it.
.PHONY: test lint bench deny

test: lint
	cargo test --workspace --quiet

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings

bench:
	cargo bench --workspace

# Needs `cargo install cargo-deny`.
deny:
	cargo deny check licenses bans sources
