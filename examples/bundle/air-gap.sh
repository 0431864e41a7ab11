#!/bin/sh
# Kernels for machines without a network: made here, carried, taken in there.
#
#   air-gap.sh pack FILE      on a machine that compiles; signs with the key build.pem
#   air-gap.sh unpack FILE    on a machine without a network; accepts the keys that trust.json names
#
# docs/signing.md says how to make both files.
set -eu

plan=deepseek-v3 targets=sm_90a

case "${1:-}" in
pack)
    jitgen prewarm "$plan" --arch "$targets"
    jitgen bundle export "$plan" --arch "$targets" -o "$2" --sign build.pem --builder "$(hostname)"
    jitgen bundle inspect "$2"
    ;;
unpack)
    export JITGEN_TRUST="$PWD/trust.json"
    jitgen bundle verify "$2"          # changes nothing; 1: refused, or a kernel is missing
    jitgen bundle import "$2"
    jitgen prewarm "$plan" --arch "$targets" --check
    ;;
*)
    echo "usage: air-gap.sh pack|unpack FILE" >&2
    exit 2
    ;;
esac
