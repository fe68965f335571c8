package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/otlptranslator"
	"github.com/stretchr/testify/require"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/process"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/store/mem"
	relockotel "github.com/go-relock/relock/telemetry/otel"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// patience limits the waits for events, as the deadline of go test is the only limit that a slow
// machine cannot make too short.
func patience(t *testing.T) time.Duration {
	t.Helper()
	deadline, limited := t.Deadline()
	if !limited {
		return time.Hour
	}
	return time.Until(deadline) - 20*time.Second
}

// program finds prometheus or promtool: in PATH, or where the environment variable PROMETHEUS or
// PROMTOOL says.
func program(t *testing.T, name string) string {
	t.Helper()
	file := os.Getenv(strings.ToUpper(name))
	if file == "" {
		file = name
	}
	path, err := exec.LookPath(file)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err == nil {
		return path
	}
	const install = "install it (apt-get install prometheus, brew install prometheus) or set %s to its path"
	redistest.NotTested(t, "there is no %s: %v; "+install, name, err, strings.ToUpper(name))
	return ""
}

func TestPromtoolAcceptsTheRulesAndTheirTestsPass(t *testing.T) {
	promtool := program(t, "promtool")
	for _, args := range [][]string{
		{"check", "rules", "alerts.yml"},
		{"check", "config", "prometheus.yml"},
		{"test", "rules", "alerts_test.yml"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience(t))
		out, err := exec.CommandContext(ctx, promtool, args...).CombinedOutput()
		cancel()
		require.NoError(t, err, "promtool %v:\n%s", args, out)
	}
}

// scrapeBoth has both modules count one Do in one registry, and returns what a scrape finds.
func scrapeBoth(t *testing.T, accept string, options ...otelprom.Option) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	hooks, err := register(registry, registry, options...)
	require.NoError(t, err)
	locks, err := relock.Open(mem.New(), relock.WithHooks(hooks))
	require.NoError(t, err)
	require.NoError(t, locks.NewLock("orders:42").Do(t.Context(), func(context.Context) error { return nil }))
	require.NoError(t, locks.Close())

	scrape, request := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/metrics", nil)
	request.Header.Set("Accept", accept)
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true}).ServeHTTP(scrape, request)
	require.Equal(t, http.StatusOK, scrape.Code, "%s", scrape.Body)
	return scrape.Body.String()
}

// A service may have the metrics of both modules in its one registry, as the default one is.
func TestOneRegistryServesTheMetricsOfBothModules(t *testing.T) {
	for name, strategy := range map[string]otelprom.Option{
		"default":         otelprom.WithoutTargetInfo(), // and the default strategy
		"suffixes":        otelprom.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes),
		"no suffixes":     otelprom.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithoutSuffixes),
		"UTF-8 suffixes":  otelprom.WithTranslationStrategy(otlptranslator.NoUTF8EscapingWithSuffixes),
		"no translation":  otelprom.WithTranslationStrategy(otlptranslator.NoTranslation),
		"namespace":       otelprom.WithNamespace("shop"),
		"no scope labels": otelprom.WithoutScopeInfo(),
	} {
		for _, accept := range []string{"text/plain", "text/plain;version=1.0.0;escaping=allow-utf-8", "application/openmetrics-text;version=1.0.0"} {
			t.Run(name+" as "+accept, func(t *testing.T) {
				scrape := scrapeBoth(t, accept, strategy)
				require.Regexp(t, `(?m)^relock_acquires_total\{.*outcome="acquired",reentrant="false".*\} 1(\.0)?$`, scrape)
				require.Regexp(t, `(?m)^\{?"?(shop_)?relock[._]client[._]acquires(_total)?.*relock[._]outcome"?="acquired".*\} 1(\.0)?$`, scrape)
			})
		}
	}
}

func TestTheScopeOfMetricsHasTheVersionOfTheModule(t *testing.T) {
	info, known := debug.ReadBuildInfo()
	require.True(t, known)
	i := slices.IndexFunc(info.Deps, func(m *debug.Module) bool { return m.Path == relockotel.ScopeName })
	require.NotEmpty(t, info.Deps[i].Version)
	require.Contains(t, scrapeBoth(t, "text/plain"), `otel_scope_version="`+info.Deps[i].Version+`"`)
}

// ruleNames are the alerts in a rules file, in order.
func ruleNames(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("alerts.yml")
	require.NoError(t, err)
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^ *- alert: (\w+)$`).FindAllSubmatch(text, -1) {
		names = append(names, string(m[1]))
	}
	require.NotEmpty(t, names)
	return names
}

func TestEachAlertIsTestedAndOnThePage(t *testing.T) {
	tests, err := os.ReadFile("alerts_test.yml")
	require.NoError(t, err)
	page, err := os.ReadFile("../../docs/OPERATIONS.md")
	require.NoError(t, err)
	var listed []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(Relock\\w+)` \\|").FindAllSubmatch(page, -1) {
		listed = append(listed, string(m[1]))
	}
	require.Equal(t, ruleNames(t), listed)
	for _, name := range listed {
		firing := regexp.MustCompile(`alertname: ` + name + `\n +eval_time: \S+\n +exp_alerts:`)
		silent := regexp.MustCompile(`alertname: ` + name + `\n +eval_time: \S+(?: #.*)?\n(?: *\n)* +- `)
		require.Regexp(t, firing, string(tests), "a test in which it fires")
		require.Regexp(t, silent, string(tests), "a test in which it does not")
	}
}

// dashboard is what of Grafana's format is looked at here.
type dashboard struct {
	Panels []struct {
		ID          int
		Type        string
		Title       string
		Description string
		Datasource  datasource
		GridPos     struct{ X, Y, W, H int }
		Targets     []struct {
			Expr       string
			RefID      string
			Datasource datasource
		}
	}
	Annotations struct {
		List []struct{ Name, Expr string }
	}
	Templating struct {
		List []struct {
			Name     string
			Type     string
			Query    json.RawMessage
			AllValue string
		}
	}
}

type datasource struct{ Type, UID string }

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	text, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	var d dashboard
	require.NoError(t, json.Unmarshal(text, &d))
	return d
}

func TestTheDashboardIsInOrder(t *testing.T) {
	d := readDashboard(t)
	require.Greater(t, len(d.Panels), 20)
	ids := map[int]bool{}
	cells := map[[2]int]string{}
	for _, p := range d.Panels {
		require.False(t, ids[p.ID], "%s: each panel has its own id", p.Title)
		ids[p.ID] = true
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				require.Empty(t, cells[[2]int{x, y}], "%s lies on another panel", p.Title)
				cells[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		require.NotEmpty(t, p.Title)
		require.NotEmpty(t, p.Description, p.Title)
		require.NotEmpty(t, p.Targets, p.Title)
		want := datasource{Type: "prometheus", UID: "${datasource}"}
		require.Equal(t, want, p.Datasource, p.Title)
		for _, target := range p.Targets {
			require.Equal(t, want, target.Datasource, p.Title)
		}
	}
	var variables []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
	}
	require.Equal(t, []string{"datasource", "job", "lock"}, variables)
}

// Every metric that there is can be seen on the dashboard, and neither it nor the alerts ask for
// another.
func TestTheDashboardShowsEveryMetric(t *testing.T) {
	page, err := os.ReadFile("../../docs/OPERATIONS.md") // whose table is compared with the metrics where these are made
	require.NoError(t, err)
	metrics := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(relock_\\w+)").FindAllSubmatch(page, -1) {
		metrics[string(m[1])] = true
	}
	used := func(file string) map[string]bool {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		found := map[string]bool{}
		for _, name := range regexp.MustCompile(`\brelock_\w+`).FindAllString(string(text), -1) {
			if base := regexp.MustCompile(`_(bucket|count|sum)$`).ReplaceAllString(name, ""); metrics[base] {
				name = base
			}
			found[name] = true
		}
		return found
	}
	require.Equal(t, slices.Sorted(maps.Keys(metrics)), slices.Sorted(maps.Keys(used("dashboard.json"))))
	for name := range used("alerts.yml") {
		require.True(t, metrics[name], "alerts.yml: there is no %s", name)
	}
}

// prometheusServer is a real one.
type prometheusServer struct {
	t   *testing.T
	url string
}

// startPrometheus runs Prometheus with prometheus.yml and alerts.yml as they are, but for the
// address of what it scrapes and the intervals.
func startPrometheus(t *testing.T, target string) *prometheusServer {
	t.Helper()
	bin, dir := program(t, "prometheus"), t.TempDir()
	config, err := os.ReadFile("prometheus.yml")
	require.NoError(t, err)
	require.Equal(t, 2, bytes.Count(config, []byte("127.0.0.1:2112")))
	require.Equal(t, 2, bytes.Count(config, []byte("_interval: 5s")))
	config = bytes.ReplaceAll(config, []byte("127.0.0.1:2112"), []byte(target))
	config = bytes.ReplaceAll(config, []byte("_interval: 5s"), []byte("_interval: 2s")) // and the limit of a scrape
	rules, err := os.ReadFile("alerts.yml")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), config, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "alerts.yml"), rules, 0o600))

	// Between the choice of a port and its use another process can take it: then Prometheus ends, and
	// the next is tried.
	for range 5 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		addr := l.Addr().String()
		require.NoError(t, l.Close())
		log, err := os.Create(filepath.Join(dir, "prometheus.log"))
		require.NoError(t, err)
		cmd := exec.CommandContext(t.Context(), bin, "--config.file="+filepath.Join(dir, "prometheus.yml"),
			"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+addr)
		cmd.Stdout, cmd.Stderr = log, log
		server, err := process.Start(cmd)
		require.NoError(t, err)
		t.Cleanup(func() {
			require.NoError(t, server.Kill())
			_ = log.Close()
			if t.Failed() {
				text, _ := os.ReadFile(log.Name())
				t.Logf("the log of prometheus:\n%s", text[max(0, len(text)-4000):])
			}
		})
		p := &prometheusServer{t: t, url: "http://" + addr}
		up := false
		redistest.Eventually(t, patience(t), func() bool {
			if !server.Alive() {
				return true
			}
			_, status, err := p.get("/-/ready", nil)
			up = err == nil && status == http.StatusOK
			return up
		}, "prometheus is ready")
		if up {
			return p
		}
	}
	t.Fatal("prometheus did not start")
	return nil
}

func (p *prometheusServer) get(path string, query url.Values) (body []byte, status int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path+"?"+query.Encode(), nil)
	if err != nil {
		return nil, 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	return body, resp.StatusCode, err
}

// api decodes the data of a reply of the API.
func (p *prometheusServer) api(path string, query url.Values, data any) {
	p.t.Helper()
	body, status, err := p.get(path, query)
	require.NoError(p.t, err)
	require.Equal(p.t, http.StatusOK, status, "%s %v:\n%s", path, query, body)
	var reply struct{ Data json.RawMessage }
	require.NoError(p.t, json.Unmarshal(body, &reply))
	require.NoError(p.t, json.Unmarshal(reply.Data, data))
}

// query returns the values of the series that an expression gives. That it is wrong fails the test.
func (p *prometheusServer) query(expr string) []float64 {
	p.t.Helper()
	var data struct {
		Result []struct{ Value [2]any }
	}
	p.api("/api/v1/query", url.Values{"query": {expr}}, &data)
	var values []float64
	for _, series := range data.Result {
		v, err := strconv.ParseFloat(series.Value[1].(string), 64)
		require.NoError(p.t, err)
		values = append(values, v)
	}
	return values
}

func somePositive(values []float64) bool {
	return slices.ContainsFunc(values, func(v float64) bool { return v > 0 && !math.IsInf(v, 0) })
}

// It runs the shop on a real Redis, scraped by a real Prometheus. Each query of the
// dashboard has to find something, and what it finds of the one module it has to find of the other.
func TestTheDashboardAndTheAlertsFindWhatTheLoadDoes(t *testing.T) {
	m, err := newMetrics()
	require.NoError(t, err)
	server := httptest.NewServer(m)
	defer server.Close()
	prom := startPrometheus(t, server.Listener.Addr().String())
	redistest.Eventually(t, patience(t), func() bool {
		return len(prom.query(`relock_events_dropped_total == 0`)) == 2 // before anything has happened
	}, "Prometheus scrapes both modules")

	ctx, cancel := context.WithCancel(t.Context())
	opened := make(chan error, 1)
	s := &shop{options: redistest.Start(t).Options(), hooks: m.hooks, prefix: "observability:"}
	go func() { opened <- s.run(ctx) }()
	closeShop := sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-opened:
			if err != nil {
				t.Errorf("the shop has closed: %v", err)
			}
		case <-time.After(patience(t)):
			t.Error("the shop does not close")
		}
	})
	defer closeShop()

	// What has not been found yet.
	missing := map[string]string{}
	d := readDashboard(t)
	for _, job := range []string{"shop", "shop-otel"} {
		expand := strings.NewReplacer("$__rate_interval", "1h", "$__range", "1h", "$job", job, "$lock", ".*").Replace
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				missing[job+": "+p.Title+" "+target.RefID] = expand(target.Expr)
			}
		}
		for _, a := range d.Annotations.List {
			missing[job+": annotation "+a.Name] = expand(a.Expr)
		}
		for _, reason := range []string{"expired", "taken", "max_hold", "abandoned", "leaked"} {
			missing[job+": alert for reason "+reason] = fmt.Sprintf(`ALERTS{alertname="RelockLost",alertstate="firing",job=%q,reason=%q}`, job, reason)
		}
		for _, alert := range []string{"RelockHeldLong", "RelockLeak"} {
			missing[job+": alert "+alert] = fmt.Sprintf(`ALERTS{alertname=%q,alertstate="firing",job=%q,lock=~".+"}`, alert, job)
		}
		missing[job+": leader"] = fmt.Sprintf(`relock_holds{job=%q,lock="leader"}`, job)
		for _, mode := range []string{"exclusive", "shared", "permit"} {
			missing[job+": holds in mode "+mode] = fmt.Sprintf(`relock_holds{job=%q,mode=%q}`, job, mode)
		}
		missing[job+": alert for dropped events"] = fmt.Sprintf(`ALERTS{alertname="RelockEventsDropped",alertstate="firing",job=%q}`, job)
		for _, alert := range []string{"RelockAcquireSuccessLow", "RelockWaitLong", "RelockRenewalsFailing"} {
			missing[job+": alert "+alert] = fmt.Sprintf(`ALERTS{alertname=%q,alertstate=~"pending|firing",job=%q}`, alert, job)
		}
	}
	require.Greater(t, len(missing), 80)
	limit := time.Now().Add(patience(t))
	for len(missing) > 0 && time.Now().Before(limit) {
		for name, expr := range missing {
			if somePositive(prom.query(expr)) {
				delete(missing, name)
			}
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case err := <-opened:
			opened <- nil
			t.Fatalf("the shop has closed: %v", err)
		}
	}
	require.Empty(t, missing, "queries that have found nothing")
	require.Empty(t, prom.query(`ALERTS{alertname="RelockHeldLong",lock="leader"}`), "a leader holds its lock for long on purpose")

	// The variables of the dashboard.
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		var query struct{ Query string }
		require.NoError(t, json.Unmarshal(v.Query, &query))
		parts := regexp.MustCompile(`^label_values\((.+), (\w+)\)$`).FindStringSubmatch(query.Query)
		require.NotNil(t, parts, query.Query)
		var got []string
		prom.api("/api/v1/label/"+parts[2]+"/values", url.Values{"match[]": {strings.ReplaceAll(parts[1], "$job", "shop|shop-otel")}}, &got)
		want := map[string][]string{"job": {"shop", "shop-otel"}, "lock": {"carts", "leader", "orders", "prices", "reports", "stock", "tills"}}
		require.Equal(t, want[v.Name], got, v.Name)
	}

	// Rules, and queries, that Prometheus could not evaluate.
	var rules struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	prom.api("/api/v1/rules", nil, &rules)
	n := 0
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			require.Equal(t, "ok", rule.Health, "%s: %s", rule.Name, rule.LastError)
			n++
		}
	}
	require.Greater(t, n, len(ruleNames(t)))

	// Both modules have counted the same. While the shop works they are not scraped at the same
	// moment.
	closeShop()
	const counted = `sum by (metric) (label_replace({__name__=~"relock_.+_(total|count)", job=%q}, "metric", "$1", "__name__", "(.+)"))`
	shop, otel := fmt.Sprintf(counted, "shop"), fmt.Sprintf(counted, "shop-otel")
	redistest.Eventually(t, patience(t), func() bool { // a slow scrape is no scrape
		same := len(prom.query(shop + " == " + otel))
		return same > 10 && same == len(prom.query(shop+" or "+otel))
	}, "both modules have counted the same")
}

func TestTheProgramServesMetricsUntilItsTimeIsOver(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, in := io.Pipe()
	defer out.Close()
	done := make(chan error, 1)
	go func() { done <- run(ctx, in, "127.0.0.1:0", "") }()
	line := make([]byte, 200)
	n, err := out.Read(line)
	require.NoError(t, err)
	addr := regexp.MustCompile(`http://([\d.:]+)/metrics and http://[\d.:]+/otel\n$`).FindSubmatch(line[:n])
	require.NotNil(t, addr, "%s", line[:n])
	p := &prometheusServer{t: t, url: "http://" + string(addr[1])}
	for _, path := range []string{"/metrics", "/otel"} {
		redistest.Eventually(t, patience(t), func() bool {
			body, status, err := p.get(path, nil)
			return err == nil && status == http.StatusOK && regexp.MustCompile(`(?m)^relock_(client_)?hold_depth_count\{`).Match(body)
		}, "%s has what happened", path)
	}
	cancel()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(patience(t)):
		t.Fatal("it does not end")
	}
}

func TestWhatCannotWorkIsSaidAtOnce(t *testing.T) {
	require.ErrorContains(t, run(t.Context(), io.Discard, "127.0.0.1:0", "http://x"), "REDIS_URL")
	require.Error(t, run(t.Context(), io.Discard, "256.0.0.1:0", ""))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	closed := l.Addr().String()
	require.NoError(t, l.Close())
	require.ErrorContains(t, run(t.Context(), io.Discard, "127.0.0.1:0", "redis://"+closed), "redis at "+closed)
}

func TestTheShopLeavesOnlyTokensInRedis(t *testing.T) {
	server := redistest.Start(t)
	rdb := server.Client()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := &shop{options: server.Options(), prefix: "shop:"}
	closed := make(chan error, 1)
	go func() { closed <- s.run(ctx) }()
	redistest.Eventually(t, patience(t), func() bool {
		return rdb.Exists(t.Context(), s.key("carts:3")).Val() == 1
	}, "somebody else uses the key of a lock")
	cancel()
	select {
	case err := <-closed:
		require.NoError(t, err)
	case <-time.After(patience(t)):
		t.Fatal("the shop does not close")
	}
	redistest.Eventually(t, patience(t), func() bool { // leases that nobody renews run out
		return !slices.ContainsFunc(redistest.Keys(t, rdb), func(key string) bool { return !strings.HasSuffix(key, ":token") })
	}, "only tokens are left")
}

func TestAURLThatCannotBeReadIsNotRepeatedAsItMayHaveAPassword(t *testing.T) {
	for _, url := range []string{"redis://user:secret@localhost:port", "redis://user:secret/1@localhost", "http://user:secret@localhost"} {
		err := run(t.Context(), io.Discard, "127.0.0.1:0", url)
		require.ErrorContains(t, err, "REDIS_URL")
		require.NotContains(t, err.Error(), "secret")
	}
}
