package engine

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeEngine answers requests without a network, so that it can stand in a
// synctest bubble. A path that it does not have is 404.
type fakeEngine struct {
	mu     sync.Mutex
	refuse bool              // connections are refused
	status map[string]int    // by path, 200 when absent
	body   map[string]string // by path
	hang   map[string]bool   // by path: no answer
	asked  map[string]int    // by path
	key    string            // the last Authorization header
}

func newFakeEngine() *fakeEngine {
	return &fakeEngine{
		status: map[string]int{},
		body: map[string]string{
			"/v1/models": `{"data":[{"id":"tiny","root":"/model","parent":null,"max_model_len":8192}]}`,
			"/version":   `{"version":"0.32.0"}`,
			"/health":    "",
			"/metrics":   metricsPage(0, 100, 100),
		},
		hang:  map[string]bool{},
		asked: map[string]int{},
	}
}

// metricsPage has one rank for each prompt counter; a start time of 0 is left
// out.
func metricsPage(start float64, prompt ...float64) string {
	var b strings.Builder
	if start > 0 {
		fmt.Fprintf(&b, "process_start_time_seconds %v\n", start)
	}
	for rank, n := range prompt {
		fmt.Fprintf(&b, "vllm:num_requests_running{engine=\"%d\",model_name=\"tiny\"} 1.0\n", rank)
		fmt.Fprintf(&b, "vllm:prompt_tokens_total{engine=\"%d\",model_name=\"tiny\"} %v\n", rank, n)
		fmt.Fprintf(&b, "vllm:cache_config_info{block_size=\"16\",engine=\"%d\",num_gpu_blocks=\"%d\"} 1.0\n", rank, 100*len(prompt))
	}
	return b.String()
}

func (f *fakeEngine) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fakeEngine) count(path string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[path]
}

func (f *fakeEngine) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	path := r.URL.Path
	f.asked[path]++
	f.key = r.Header.Get("Authorization")
	status, body, found := f.status[path], f.body[path], true
	if status == 0 {
		status = http.StatusOK
		_, found = f.body[path]
	}
	if !found {
		status = http.StatusNotFound
	}
	refuse, hang := f.refuse, f.hang[path]
	f.mu.Unlock()

	switch {
	case status < 0:
		return nil, io.EOF
	case refuse:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	case hang:
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return &http.Response{
		StatusCode: status, Header: http.Header{}, Request: r, Body: io.NopCloser(strings.NewReader(body)),
	}, nil
}

func (f *fakeEngine) client() *http.Client { return &http.Client{Transport: f} }

func mustBase(t testing.TB, s string) *url.URL {
	t.Helper()
	base, err := ParseBase(s)
	if err != nil {
		t.Fatal(err)
	}
	return base
}
