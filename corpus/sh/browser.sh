#!/bin/sh
# A page in a browser, whose processes lock themselves up. usage: browser.sh chromium|firefox PAGE MIB
set -e
page="file://$2?$3"
case "$1" in
    chromium)
        # It does not lock itself up as root, and does not start unless it is told so.
        [ "$(id -u)" = 0 ] && unlocked=--no-sandbox || unlocked=
        chromium --headless --disable-gpu --user-data-dir="$HOME/chromium" --timeout=1000000 \
            $unlocked --dump-dom "$page" ;;
    firefox)
        mkdir "$HOME/firefox"
        firefox-esr --headless --no-remote --profile "$HOME/firefox" \
            --window-size 400,400 --screenshot "$PWD/page.png" "$page" >&2 ;;
esac
