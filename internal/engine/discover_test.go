package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseBase(t *testing.T) {
	tests := []struct{ in, base, models string }{
		{"http://127.0.0.1:8000", "http://127.0.0.1:8000", "http://127.0.0.1:8000/v1/models"},
		{"http://127.0.0.1:8000/", "http://127.0.0.1:8000", "http://127.0.0.1:8000/v1/models"},
		{"http://127.0.0.1:8000/v1", "http://127.0.0.1:8000", "http://127.0.0.1:8000/v1/models"},
		{"http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000", "http://127.0.0.1:8000/v1/models"},
		{"http://127.0.0.1:8000//v1//", "http://127.0.0.1:8000", "http://127.0.0.1:8000/v1/models"},
		{"http://box/llm", "http://box/llm", "http://box/llm/v1/models"},
		{"http://box/llm//a/v1?x=1#y", "http://box/llm/a", "http://box/llm/a/v1/models"},
		{"http://box/a%2Fb/", "http://box/a%2Fb", "http://box/a%2Fb/v1/models"},
		{"http://box/v10", "http://box/v10", "http://box/v10/v1/models"},
		{"https://box/v1", "https://box", "https://box/v1/models"},
		{"box:8000", "http://box:8000", "http://box:8000/v1/models"},
		{" localhost ", "http://localhost", "http://localhost/v1/models"},
		{"http://[::1]:8000/v1", "http://[::1]:8000", "http://[::1]:8000/v1/models"},
	}
	for _, test := range tests {
		base, err := ParseBase(test.in)
		if err != nil {
			t.Errorf("%q: %v", test.in, err)
			continue
		}
		if base.String() != test.base || base.JoinPath("/v1/models").String() != test.models {
			t.Errorf("%q: base %s, models %s", test.in, base, base.JoinPath("/v1/models"))
		}
	}
}

func TestParseBaseErrors(t *testing.T) {
	tests := []struct{ in, want string }{
		{"", "no host"},
		{"http://", "no host"},
		{"http://:8000", "no host"},
		{"ftp://box", `"ftp" is not http or https`},
		{"http://box:80a", "invalid port"},
		{"http://user:secret@box", "API key instead"},
		{"http://user:secret@box:80a", "invalid port"},
	}
	for _, test := range tests {
		_, err := ParseBase(test.in)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: got %v, want ...%s...", test.in, err, test.want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: the error tells the password: %v", test.in, err)
		}
	}
}

func TestDiscover(t *testing.T) {
	two := []Model{
		{ID: "tiny", Root: "/model", MaxModelLen: 8192},
		{ID: "tiny-too", Root: "/model", MaxModelLen: 8192},
		{ID: "sql", Root: "/lora", Parent: "tiny"},
	}
	tests := []struct {
		name   string
		change func(*fakeEngine)
		want   Info
	}{
		{"vllm with two ranks", func(f *fakeEngine) {}, Info{
			Kind: "vllm", Version: "0.32.0", Models: []Model{{ID: "tiny", Root: "/model", MaxModelLen: 8192}},
			Ranks: 2, BlockSize: 16, CapacityTokens: 1600, PrefixCaching: true, HasMetrics: true}},
		{"several names and an adapter", func(f *fakeEngine) {
			f.body["/v1/models"] = `{"data":[{"id":"tiny","root":"/model","max_model_len":8192},
				{"id":"tiny-too","root":"/model","max_model_len":8192},{"id":"sql","root":"/lora","parent":"tiny","max_model_len":null}]}`
		}, Info{Kind: "vllm", Version: "0.32.0", Models: two, Ranks: 2, BlockSize: 16, CapacityTokens: 1600,
			PrefixCaching: true, HasMetrics: true}},
		{"another engine", func(f *fakeEngine) {
			clear(f.body)
			f.body["/v1/models"] = `{"data":[{"id":"llama","meta":{"n_ctx":4096}}]}`
		}, Info{Kind: "unknown", Models: []Model{{ID: "llama", Root: "llama"}}, Ranks: 1, PrefixCaching: true}},
		{"a metrics page that is a web page", func(f *fakeEngine) { f.body["/metrics"] = "<html>" }, Info{
			Kind: "unknown", Version: "0.32.0", Models: two[:1], Ranks: 1, PrefixCaching: true}},
		{"a metrics page that fails", func(f *fakeEngine) { f.status["/metrics"] = 500 }, Info{
			Kind: "unknown", Version: "0.32.0", Models: two[:1], Ranks: 1, PrefixCaching: true}},
	}
	for _, test := range tests {
		f := newFakeEngine()
		test.change(f)
		info, err := Discover(t.Context(), f.client(), mustBase(t, "http://engine/v1"), "k")
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if diff := cmp.Diff(test.want, info); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
		if f.key != "Bearer k" {
			t.Errorf("%s: authorization %q", test.name, f.key)
		}
	}
}

func TestDiscoverRecordedPages(t *testing.T) {
	for name, page := range recordedPages(t) {
		f := newFakeEngine()
		f.body["/metrics"] = string(page)
		info, err := Discover(t.Context(), f.client(), mustBase(t, "engine"), "")
		if err != nil {
			t.Fatal(err)
		}
		if info.Ranks != 2 || info.BlockSize != 32 || info.CapacityTokens != 1048576 || !info.PrefixCaching || info.HostTier {
			t.Errorf("%s: %+v", name, info)
		}
		if f.key != "" {
			t.Errorf("%s: authorization %q without a key", name, f.key)
		}
	}
}

func TestDiscoverErrorsNameTheRemedy(t *testing.T) {
	tests := []struct {
		name   string
		change func(*fakeEngine)
		key    string
		want   string
	}{
		{"no key", func(f *fakeEngine) { f.status["/v1/models"] = 401 }, "", "http://engine:1/v1/models: 401 Unauthorized: set the engine's API key"},
		{"wrong key", func(f *fakeEngine) { f.status["/v1/models"] = 401 }, "k", "does not take the API key that is set"},
		{"not found", func(f *fakeEngine) { f.status["/v1/models"] = 404 }, "", "404 Not Found: no OpenAI-compatible engine at this URL"},
		{"redirect", func(f *fakeEngine) { f.status["/v1/models"] = 307 }, "", "redirects are not followed"},
		{"loading", func(f *fakeEngine) { f.status["/v1/models"] = 503 }, "", "503 Service Unavailable: the engine, or what stands before it, is not ready"},
		{"web page", func(f *fakeEngine) { f.body["/v1/models"] = " <!DOCTYPE html>" }, "", "a web page instead of an engine's model list: check the engine URL"},
		{"garbage", func(f *fakeEngine) { f.body["/v1/models"] = "\x00\xff" }, "", "not the JSON"},
		{"list", func(f *fakeEngine) { f.body["/v1/models"] = "[]" }, "", "not the JSON"},
		{"no models", func(f *fakeEngine) { f.body["/v1/models"] = `{"data":[{}]}` }, "", "names no model"},
		{"no answer to /version", func(f *fakeEngine) { f.status["/version"] = -1 }, "", "/version"},
		{"dies before it tells its ranks", func(f *fakeEngine) { f.status["/metrics"] = -1 }, "", "/metrics"},
		{"refused", func(f *fakeEngine) { f.refuse = true }, "", "connection refused (is the engine running there?)"},
		{"too large", func(f *fakeEngine) { f.body["/v1/models"] = strings.Repeat(" ", maxBody+1) }, "", "larger than 8 MiB"},
	}
	for _, test := range tests {
		f := newFakeEngine()
		test.change(f)
		_, err := Discover(t.Context(), f.client(), mustBase(t, "http://engine:1"), test.key)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want ...%s...", test.name, err, test.want)
		}
	}
}

func TestDiscoverDoesNotNeedTheMetricsPageInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEngine()
		f.hang["/metrics"] = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		info, err := Discover(ctx, f.client(), mustBase(t, "engine"), "")
		if err != nil || info.HasMetrics || info.Ranks != 1 || !info.Serves("tiny") {
			t.Errorf("info %+v, error %v", info, err)
		}
	})
}

// The real transport must produce errors that Unreachable knows.
func TestUnreachableOnRealConnections(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	reset := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			conn.(*net.TCPConn).SetLinger(0)
			conn.Close()
		}
	}))
	defer reset.Close()
	hangup := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }))
	defer hangup.Close()
	fine := httptest.NewServer(http.NotFoundHandler())
	defer fine.Close()

	client := NewClient()
	defer client.CloseIdleConnections()
	for name, test := range map[string]struct {
		url  string
		want bool
	}{
		"refused": {gone.URL, true}, "reset": {reset.URL, true}, "hang-up": {hangup.URL, true}, "answered": {fine.URL, false},
	} {
		resp, err := client.Get(test.url)
		if err == nil {
			resp.Body.Close()
		}
		if Unreachable(err) != test.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestUnreachable(t *testing.T) {
	dial := func(err error) error { return fmt.Errorf("send: %w", &net.OpError{Op: "dial", Err: err}) }
	tests := []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("503"), false},
		{context.DeadlineExceeded, false},
		{context.Canceled, false},
		{dial(context.Canceled), false},
		{dial(syscall.EMFILE), false},
		{dial(syscall.EHOSTUNREACH), true},
		{dial(&net.DNSError{}), true},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, true},
		{fmt.Errorf("x: %w", io.ErrUnexpectedEOF), true},
	}
	for _, test := range tests {
		if got := Unreachable(test.err); got != test.want {
			t.Errorf("%v: %v", test.err, got)
		}
	}
}
