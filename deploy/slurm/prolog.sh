#!/bin/sh
# Slurm prolog (slurm.conf: Prolog=, run as root on the node): writes which job runs on which GPU, a file per GPU index with a
# job id a line. overlap-exporter reads it (jobs.directory), and so does dcgm-exporter. Never fails: that would drain the node.
directory=${OVERLAP_JOBS_DIRECTORY:-/run/gpu-jobs}
gpus=${SLURM_JOB_GPUS:-${CUDA_VISIBLE_DEVICES:-${GPU_DEVICE_ORDINAL:-}}}

[ -n "$gpus" ] && [ -n "${SLURM_JOB_ID:-}" ] || exit 0
mkdir -p "$directory" 2>/dev/null && chmod 755 "$directory" || exit 0
(: >>"$directory.lock") 2>/dev/null || exit 0
exec 9>"$directory.lock"
command -v flock >/dev/null && flock -w 5 9 # two jobs of one node may start at once

for gpu in $(printf '%s' "$gpus" | tr ',' ' '); do
  case $gpu in */* | .*) continue ;; esac
  file=$directory/$gpu
  { [ ! -f "$file" ] || grep -vxF -- "$SLURM_JOB_ID" "$file"; printf '%s\n' "$SLURM_JOB_ID"; } >"$directory/.$gpu.new" 2>/dev/null &&
    chmod 644 "$directory/.$gpu.new" && mv "$directory/.$gpu.new" "$file"
done
exit 0
