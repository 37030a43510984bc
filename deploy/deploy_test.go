// Package deploy tests what stands beside it: a dashboard and alert rules ask
// only for what the gateway has.
package deploy

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"lmwarden/internal/app"
)

// dashboard is what we read of Grafana's form.
type dashboard struct {
	Panels []struct {
		Title   string
		Targets []struct{ Expr string }
	}
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	text, err := os.ReadFile("grafana/warden.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestEveryMetricThatIsAskedForExists compares with docs/metrics.md, which a test
// of the metrics keeps equal to what is registered.
func TestEveryMetricThatIsAskedForExists(t *testing.T) {
	page, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{} // by metric
	for _, m := range regexp.MustCompile("(?m)^\\| `(warden_[a-z_]+)\\{([a-z,]+)\\}`").FindAllStringSubmatch(string(page), -1) {
		labels[m[1]] = "," + m[2] + ","
	}
	queries := map[string]string{}
	for _, p := range readDashboard(t).Panels {
		for i, target := range p.Targets {
			queries[fmt.Sprintf("%s %d", p.Title, i)] = target.Expr
		}
	}
	rules, err := os.ReadFile("prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	queries["alerts.yaml"] = string(rules)
	asked := regexp.MustCompile(`(warden_[a-z_]+)(?:\{([^}]*)\})?`)
	for where, q := range queries {
		for _, m := range asked.FindAllStringSubmatch(q, -1) {
			known, ok := labels[strings.TrimSuffix(m[1], "_bucket")]
			if !ok {
				t.Errorf("%s: there is no metric %s", where, m[1])
			}
			for _, l := range regexp.MustCompile(`([a-z]+)(?:=|!)`).FindAllStringSubmatch(m[2], -1) {
				if !strings.Contains(known, ","+l[1]+",") {
					t.Errorf("%s: %s has no label %s", where, m[1], l[1])
				}
			}
		}
	}
	if len(queries) < 10 {
		t.Errorf("only %d queries found", len(queries))
	}
}

func TestAlertRules(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed (Debian: prometheus)")
	}
	cmd := exec.CommandContext(t.Context(), promtool, "test", "rules", "alerts_test.yaml")
	cmd.Dir = "prometheus"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestTheDashboardShowsAGatewayAtWork runs every query against a gateway that
// serves agents, as Prometheus reads it.
func TestTheDashboardShowsAGatewayAtWork(t *testing.T) {
	prometheus, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("prometheus is not installed (Debian: prometheus)")
	}
	if testing.Short() {
		t.Skip("takes half a minute; -short is set")
	}
	ctx, stop := context.WithCancel(t.Context())
	out, demo := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := app.Demo(ctx, app.IO{Out: demo, Err: io.Discard}, app.DemoOptions{Phase: 8 * time.Second, Agents: 8, Keep: true})
		demo.Close()
		done <- err
	}()
	defer func() {
		stop()
		<-done
	}()
	lines := bufio.NewScanner(out)
	var admin string
	for admin == "" && lines.Scan() {
		if m := regexp.MustCompile(`Routing card: (http://[^/]+)/`).FindStringSubmatch(lines.Text()); m != nil {
			admin = m[1]
		}
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	if admin == "" {
		t.Fatal("the demo does not say where its card is")
	}

	dir := t.TempDir()
	settings := fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs:\n  - job_name: warden\n    static_configs: [{targets: [%q]}]\n", strings.TrimPrefix(admin, "http://"))
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	address := freeAddress(t)
	server := exec.CommandContext(ctx, prometheus, "--config.file", filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", address, "--log.level", "error")
	server.Stderr = os.Stderr
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Wait() }()
	defer stop()

	waiting, cancel := context.WithTimeout(ctx, 45*time.Second)
	defer cancel()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			q := strings.NewReplacer("$__rate_interval", "20s", "$model", ".*").Replace(target.Expr)
			for {
				why, ok := answers(waiting, "http://"+address, q)
				if ok {
					break
				}
				select {
				case <-tick.C:
				case <-waiting.Done():
					t.Fatalf("%s: %s: %s", p.Title, q, why)
				}
			}
		}
	}
}

// answers says whether a query has a result with a number in it.
func answers(ctx context.Context, prometheus, query string) (why string, ok bool) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, prometheus+"/api/v1/query?query="+url.QueryEscape(query), nil)
	if err != nil {
		return err.Error(), false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error(), false
	}
	defer resp.Body.Close()
	var a struct {
		Status, Error string
		Data          struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil {
		return err.Error(), false
	}
	for _, r := range a.Data.Result {
		if r.Value[1] != "NaN" {
			return "", true
		}
	}
	return fmt.Sprintf("%s %s %v", a.Status, a.Error, a.Data.Result), false
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
