// Package browser has no code. Its tests open the page in a real browser: a headless Chromium, which
// make browser installs and runs. A plain go test skips them, and says so.
package browser
