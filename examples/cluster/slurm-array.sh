#!/bin/sh
# One part of a study per task of a Slurm array. All tasks write into one folder of a shared file system:
#   sbatch --array=1-20 slurm-array.sh STUDY.toml FOLDER 20
#   tidegate runs merge FOLDER          # when all tasks have ended
# A task that was killed continues when it is submitted again: sbatch --array=7 slurm-array.sh STUDY.toml FOLDER 20
#SBATCH --cpus-per-task=2
#SBATCH --time=04:00:00
set -eu
exec tidegate sweep "$1" --out "$2" --shard "$SLURM_ARRAY_TASK_ID/$3" --jobs "${SLURM_CPUS_PER_TASK:-0}"
