// Package browser has no code. Its tests open the page in a real browser: a headless
// Chromium, which tools/install-deps.sh installs. Under make a test fails without a browser; with a
// plain go test it skips and says so.
package browser
