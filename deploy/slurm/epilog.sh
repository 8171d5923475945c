#!/bin/sh
# Slurm epilog (slurm.conf: Epilog=, run as root on the node): takes the job out of the files that prolog.sh wrote. Looks
# through all files, since an epilog is not always told the GPUs. Never fails: that would drain the node.
directory=${OVERLAP_JOBS_DIRECTORY:-/run/gpu-jobs}

[ -d "$directory" ] && [ -n "${SLURM_JOB_ID:-}" ] || exit 0
(: >>"$directory.lock") 2>/dev/null || exit 0
exec 9>"$directory.lock"
command -v flock >/dev/null && flock -w 5 9

for file in "$directory"/*; do
  [ -f "$file" ] && grep -qxF -- "$SLURM_JOB_ID" "$file" || continue
  new=$directory/.${file##*/}.new
  if grep -vxF -- "$SLURM_JOB_ID" "$file" >"$new"; then
    chmod 644 "$new" && mv "$new" "$file"
  else
    rm -f "$new" "$file"
  fi
done
exit 0
