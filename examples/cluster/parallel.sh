#!/bin/sh
# The parts of a study with GNU parallel, on this machine or on those of --sshloginfile:
#   parallel.sh STUDY.toml FOLDER [PARTS] [OPTIONS OF PARALLEL]
set -eu
study=$1 folder=$2 parts=${3:-20}
shift 2
[ $# -eq 0 ] || shift
seq "$parts" | parallel --halt soon,fail=1 "$@" tidegate sweep "$study" --out "$folder" --shard "{}/$parts" --jobs 1
tidegate runs merge "$folder"
