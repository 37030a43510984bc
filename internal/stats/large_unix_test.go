//go:build unix

package stats_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"syscall"
	"testing"
	"time"

	"lmwarden/internal/pool"
	"lmwarden/internal/routing"
	"lmwarden/internal/session"
	"lmwarden/internal/stats"
	"lmwarden/internal/web"
)

// large turns the test on; its value is the number of requests, or 1 for ten
// million.
const large = "LMWARDEN_LARGE_HISTORY"

// With 10,000,000 requests of 30 days, two models, eight replicas and six clients
// each chart is there within 300 ms, and each page of the console that shows some
// within 200 ms. What counts is the time that the process has on the CPU, since others
// may be busy on the machine.
//
//	LMWARDEN_LARGE_HISTORY=1 go test -run TestALargeHistory -v -timeout 20m ./internal/stats
func TestALargeHistory(t *testing.T) {
	n := 0
	switch _, err := fmt.Sscan(os.Getenv(large), &n); {
	case err != nil || n < 1:
		t.Skipf("takes minutes and 1.5 GB of disk; set %s=1", large)
	case n == 1:
		n = 10_000_000
	}
	s, noon := stats.Large(t, n)

	ctx := t.Context()
	within := func(most time.Duration, what string, ask func() (int, error)) {
		t.Helper()
		before, began := onCPU(t), time.Now()
		rows, err := ask()
		wall, took := time.Since(began), onCPU(t)-before
		t.Logf("%6d ms, %4d ms of CPU  %s (%d)", wall.Milliseconds(), took.Milliseconds(), what, rows)
		if err != nil || took > most || rows == 0 {
			t.Errorf("%s: %d rows after %v, at most %v: %v", what, rows, took, most, err)
		}
	}
	const chart, page = 300 * time.Millisecond, 200 * time.Millisecond
	for _, path := range []string{
		"/", "/models/model-0", "/conversations/" + heavy,
		"/stats", "/stats?range=7d&group=replica", "/stats?range=30d&group=client", "/stats?range=300d",
		"/stats?measure=requests&range=24h&step=2m", "/stats?measure=ttfb&range=6h&step=30s&group=client", "/stats?measure=errors&range=30d",
	} {
		console := console(t, s, noon) // none has kept an answer
		within(page, "page     "+path, func() (int, error) {
			w := httptest.NewRecorder()
			console.ServeHTTP(w, httptest.NewRequest("GET", "http://127.0.0.1:8101"+path, nil))
			if w.Code != http.StatusOK {
				return 0, fmt.Errorf("status %d", w.Code)
			}
			return w.Body.Len(), nil
		})
	}
	for _, text := range []string{
		"range=1h", "range=6h", "range=24h", "range=7d", "range=30d",
		"range=6h&step=10s", "range=24h&step=1m", "range=7d&step=10m", "range=30d&step=1h", "range=300d",
	} {
		for _, group := range []string{"none", "replica", "client"} {
			q := query(t, noon, text+"&group="+group)
			within(chart, "tokens   "+text+" "+group, func() (int, error) {
				c, err := s.Tokens(ctx, q)
				return len(c.Series), err
			})
			within(chart, "requests "+text+" "+group, func() (int, error) {
				c, err := s.Requests(ctx, q)
				return len(c.Series), err
			})
		}
		q := query(t, noon, text+"&model=model-0")
		within(chart, "replicas "+text, func() (int, error) { r, err := s.Replicas(ctx, q); return len(r), err })
		within(chart, "clients  "+text, func() (int, error) { r, err := s.Clients(ctx, q); return len(r), err })
		within(chart, "shifts   "+text, func() (int, error) { r, err := s.Shifts(ctx, q); return len(r), err })
		within(chart, "ledger   "+text, func() (int, error) { r, err := s.Ledger(ctx, q); return len(r), err })
	}
	within(chart, "recent", func() (int, error) { r, err := s.Recent(ctx, "model-0", 500); return len(r), err })
	within(chart, "turns", func() (int, error) { r, _, err := s.Turns(ctx, "c-000000000007", 100, 0); return len(r), err })
	within(chart, "turns of a heavy conversation", func() (int, error) {
		r, _, err := s.Turns(ctx, heavy, 1000, 0)
		return len(r), err
	})
}

// heavy is a conversation with one in a hundred of all requests.
const heavy = "c-0000000003e8"

// console makes pages of a history, of two models with eight replicas and of the
// heavy conversation.
func console(t *testing.T, s *stats.Store, now time.Time) http.Handler {
	t.Helper()
	var pools []web.Pool
	for _, name := range []string{"model-0", "model-1"} {
		p := idle{view: pool.View{Name: name, ServedName: name, Routing: routing.View{Policy: "affinity"}}}
		for i := range 8 {
			p.view.Replicas = append(p.view.Replicas, pool.ReplicaView{Rank: i, ReplicaView: routing.ReplicaView{State: routing.Ready}})
		}
		pools = append(pools, p)
	}
	h, err := web.New(web.Options{
		Pools: func() []web.Pool { return pools }, Conversations: one{}, History: s, Metrics: http.NotFoundHandler(),
		Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return now },
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// idle is a pool that shows its replicas and can do nothing.
type idle struct {
	web.Pool
	view pool.View
}

func (p idle) View() pool.View                 { return p.view }
func (idle) Receipts(int) []pool.Receipt       { return nil }
func (idle) Home(session.Key) (web.Home, bool) { return web.Home{}, false }

// one is a table with the heavy conversation.
type one struct{}

func (one) Conversations(session.Query) ([]session.Conversation, string, error) { return nil, "", nil }
func (one) Find(name string) (session.Conversation, bool) {
	return session.Conversation{Name: name, Model: "model-0", Turns: 100_000}, name == heavy
}

func query(t *testing.T, now time.Time, text string) stats.Query {
	t.Helper()
	v, err := url.ParseQuery(text)
	if err != nil {
		t.Fatal(err)
	}
	q, err := stats.ParseQuery(v, now)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// onCPU is how long the process has been on the CPU.
func onCPU(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
