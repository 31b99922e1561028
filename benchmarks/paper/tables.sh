#!/bin/sh
# The paper's tables: all layers of its backbones, on its suites, with 1 and 3 labels per class.
#
#   benchmarks/paper/tables.sh domainnet126 DATA OUT [more options of qurate benchmark]
#   benchmarks/paper/tables.sh office_home  DATA OUT
#   benchmarks/paper/tables.sh office31     DATA OUT
#
# The backbone is the suite's: ResNet-34 on DomainNet-126, VGG-16 on Office-Home and Office-31. Re-run the command to
# resume. First see what it will take on this machine: add --dry-run.
set -e
suite=$1 data=$2 out=$3
shift 3
qurate benchmark --suite "$suite" --data "$data" --out "$out" --train full --weights pretrained \
  --methods "source_target,dann,adr,cdan,ent,mme,cml,tml,TML_SPL,TML_DQNPL" --selectors none --presets paper,qurate \
  --shots 1,3 --seeds 0,1,2 --protocol mme --steps "${STEPS:-10000}" \
  --device "${DEVICE:-cuda}" --precision "${PRECISION:-32-true}" --workers "${WORKERS:-4}" "$@"
case " $* " in *" --dry-run "*) exit 0 ;; esac
qurate report "$out"
