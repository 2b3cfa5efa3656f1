#!/bin/sh
# A Windows program under Wine, with a Windows folder of its own. usage: wine.sh PROGRAM MIB
set -e
export WINEPREFIX="$HOME/windows" WINEDEBUG=-all DISPLAY=
wine "$1" "$2" 2>/dev/null | tr -d '\r'
wineserver -w
