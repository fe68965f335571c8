// Package browser has no code. Its tests open the page in a real browser: a headless Chromium, which
// make browser installs. They have the build tag browser, and fail where no Chromium is found.
package browser
