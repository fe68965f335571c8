package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// series is what Prometheus answered to some panels of the dashboard.
type series struct {
	Title  string  `json:"title"`
	Small  string  `json:"small"`
	Step   float64 `json:"step"` // seconds between two values
	Panels []panel `json:"panels"`
}

type panel struct {
	Title  string  `json:"title"`
	Unit   string  `json:"unit"`
	Curves []curve `json:"curves"`
}

type curve struct {
	Name   string     `json:"name"`
	Values []*float64 `json:"values"` // null: no value
}

// shown are the titles of the panels of the dashboard that the picture shows.
var shown = []string{
	"Acquires by outcome", "Wait", "What ends a wait", "How holds end", "Hold time", "Losses by reason", "Renewals", "Renewal round trips", "Scripts sent again",
}

// record asks a Prometheus that scrapes examples/observability for the panels, and writes the
// answers to metrics.series.
func record(dir, prometheus string, long time.Duration) error {
	var dashboard struct {
		Panels []struct {
			Type, Title string
			FieldConfig struct{ Defaults struct{ Unit string } }
			Targets     []struct{ Expr, LegendFormat string }
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "../../examples/observability/dashboard.json"))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		return err
	}
	const step = 20 * time.Second
	end := time.Now().Truncate(step)
	all := series{
		Title: "relock metrics: a shop under load in which everything goes wrong now and then",
		Small: fmt.Sprintf("%.0f minutes of examples/observability, as Prometheus answered to the queries of dashboard.json (this is no screenshot of Grafana)", long.Minutes()),
		Step:  step.Seconds(),
	}
	fill := strings.NewReplacer("$job", "shop", "$lock", ".*", "$__rate_interval", "1m")
	for _, p := range dashboard.Panels {
		if p.Type != "timeseries" || !slices.Contains(shown, p.Title) {
			continue
		}
		drawn := panel{Title: p.Title, Unit: p.FieldConfig.Defaults.Unit}
		for _, t := range p.Targets {
			curves, err := query(prometheus, fill.Replace(t.Expr), t.LegendFormat, end.Add(-long), end, step)
			if err != nil {
				return fmt.Errorf("panel %s: %w", p.Title, err)
			}
			drawn.Curves = append(drawn.Curves, curves...)
		}
		all.Panels = append(all.Panels, drawn)
	}
	text, err = json.Marshal(all)
	if err != nil {
		return err
	}
	text = []byte(strings.ReplaceAll(string(text), `{"name"`, "\n"+`{"name"`) + "\n") // a curve a line
	return os.WriteFile(filepath.Join(dir, "metrics.series"), text, 0o644)
}

var labelOf = regexp.MustCompile(`{{ *(\w+) *}}`)

// query returns a curve for each series of an answer, by name.
func query(prometheus, expr, legend string, from, to time.Time, step time.Duration) (curves []curve, err error) {
	values := url.Values{"query": {expr}, "start": {fmt.Sprint(from.Unix())}, "end": {fmt.Sprint(to.Unix())}, "step": {fmt.Sprint(step.Seconds())}}
	resp, err := http.Get(prometheus + "/api/v1/query_range?" + values.Encode())
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer struct {
		Error string
		Data  struct {
			Result []struct {
				Metric map[string]string
				Values [][2]any
			}
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if answer.Error != "" {
		return nil, fmt.Errorf("%s: %s", expr, answer.Error)
	}
	for _, r := range answer.Data.Result {
		c := curve{
			Name:   labelOf.ReplaceAllStringFunc(legend, func(m string) string { return r.Metric[labelOf.FindStringSubmatch(m)[1]] }),
			Values: make([]*float64, int(to.Sub(from)/step)+1),
		}
		for _, v := range r.Values {
			at := int(v[0].(float64)-float64(from.Unix())) / int(step.Seconds())
			if n, err := strconv.ParseFloat(v[1].(string), 64); err == nil && n-n == 0 { // neither NaN nor infinite
				n, _ = strconv.ParseFloat(strconv.FormatFloat(n, 'g', 3, 64), 64)
				c.Values[at] = &n
			}
		}
		c.Name = cmp.Or(c.Name, "none")
		curves = append(curves, c)
	}
	slices.SortFunc(curves, func(a, b curve) int { return strings.Compare(a.Name, b.Name) })
	return curves, nil
}
