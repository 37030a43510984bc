package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path"
	"strings"
	"syscall"
	"time"
)

// maxBody bounds an answer that we read. A page of vLLM has about 50 kB a rank.
const maxBody = 8 << 20

// ParseBase reads the base URL of a server as people write it and returns it in
// the form in which the gateway appends paths such as "/v1/messages" to it. A
// missing scheme is http; a final "/v1", doubled and final slashes, a query and
// a fragment are dropped; a path prefix stays.
func ParseBase(s string) (*url.URL, error) {
	full := strings.TrimSpace(s)
	if !strings.Contains(full, "://") {
		full = "http://" + full
	}
	u, err := url.Parse(full)
	if err != nil {
		s = s[strings.LastIndexByte(s, '@')+1:] // no password in a log
		return nil, fmt.Errorf("engine URL %q: %w", s, errors.Unwrap(err))
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("engine URL %q: scheme %q is not http or https", s, u.Scheme)
	case u.Hostname() == "":
		return nil, fmt.Errorf("engine URL %q has no host: write it like http://127.0.0.1:8000", s)
	case u.User != nil:
		return nil, fmt.Errorf("engine URL of %s carries a user name or password: engines take an API key instead", u.Host)
	}
	clean := strings.TrimSuffix(path.Clean("/"+u.EscapedPath()), "/v1")
	prefix, err := url.PathUnescape(clean)
	if err != nil {
		return nil, fmt.Errorf("engine URL %q: %w", s, err)
	}
	base := &url.URL{Scheme: u.Scheme, Host: u.Host, Path: prefix, RawPath: clean}
	if clean == "/" {
		base.Path, base.RawPath = "", ""
	}
	return base, nil
}

// NewClient returns the HTTP client for discovery and scrapes. It uses no proxy,
// gives up idle connections before vLLM closes them after 5 s, and tells a
// host that does not answer a dial from a server that is slow to answer.
func NewClient() *http.Client {
	dialer := &net.Dialer{Timeout: 2 * time.Second}
	return &http.Client{
		Transport: &http.Transport{
			DialContext:     dialer.DialContext,
			IdleConnTimeout: 4 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Unreachable reports whether an error of a request says that the server is
// gone: it could not be dialled, or it closed or reset the connection before it
// answered. A time-out after the dial says nothing of the kind, nor does a
// request that its own client cancelled, nor a want of file descriptors, ports or
// memory on this machine.
func Unreachable(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) {
		return false
	}
	for _, local := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL} {
		if errors.Is(err, local) {
			return false
		}
	}
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "dial" {
		return true
	}
	for _, gone := range []error{syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE, io.EOF, io.ErrUnexpectedEOF} {
		if errors.Is(err, gone) {
			return true
		}
	}
	return false
}

// Discover asks a server what it serves. Its kind is that of its metrics page,
// else the one that its model list names. A server whose page is missing,
// unreadable or not there in time has one rank; that is no error. Errors name the
// URL, what it answered, and the remedy.
func Discover(ctx context.Context, client *http.Client, base *url.URL, key string) (Info, error) {
	p := prober{client: client, base: base, key: key}
	info := Info{Ranks: 1, PrefixCaching: true}
	var owner string
	var err error
	if info.Models, owner, err = p.models(ctx); err != nil {
		return Info{}, err
	}
	k := kindOwning(owner)
	half, cancel := halfOf(ctx)
	defer cancel()
	page, err := p.metrics(half, info.Models)
	switch {
	case err == nil:
		info.learn(page)
		k = kindOf(page.Kind)
	case Unreachable(err) || errors.Is(err, context.Canceled):
		return Info{}, err
	}
	info.Kind = k.name
	if err := k.about(ctx, p, &info); err != nil {
		return Info{}, err
	}
	return info, nil
}

// halfOf ends when half of what ctx has is over, so that a page which does not
// come leaves time for what is asked after it.
func halfOf(ctx context.Context) (context.Context, context.CancelFunc) {
	end, limited := ctx.Deadline()
	if !limited {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(end)/2)
}

// learn takes over what a metrics page says.
func (i *Info) learn(p Page) {
	i.HasMetrics = true
	i.Ranks = len(p.Samples)
	i.BlockSize = p.BlockSize
	i.CapacityTokens = p.Samples[0].CapacityTokens
	i.PrefixCaching = p.PrefixCaching
	i.HostTier = p.HostTier
}

// prober asks one server.
type prober struct {
	client *http.Client
	base   *url.URL
	key    string
}

func (p prober) url(path string) string { return p.base.JoinPath(path).String() }

// get reads one answer whole.
func (p prober) get(ctx context.Context, path string) (status int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url(path), nil)
	if err != nil {
		return 0, nil, err
	}
	if p.key != "" {
		req.Header.Set("Authorization", "Bearer "+p.key)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return 0, nil, explain(err)
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return resp.StatusCode, nil, fmt.Errorf("%s: answer broke off: %w", p.url(path), err)
	}
	if len(body) > maxBody {
		return resp.StatusCode, nil, fmt.Errorf("%s: answer is larger than %d MiB", p.url(path), maxBody>>20)
	}
	return resp.StatusCode, body, nil
}

// explain adds the remedy to an error of the transport. The url.Error around it
// names method and URL.
func explain(err error) error {
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case Unreachable(err):
		return fmt.Errorf("%w (is the engine running there?)", err)
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return fmt.Errorf("%w (write http:// instead of https://)", err)
	}
	return err
}

// models also returns who the list says owns the first model: the engine.
func (p prober) models(ctx context.Context) (models []Model, owner string, err error) {
	const path = "/v1/models"
	status, body, err := p.get(ctx, path)
	if err != nil {
		return nil, "", err
	}
	if status != http.StatusOK {
		return nil, "", fmt.Errorf("%s: %d %s: %s", p.url(path), status, http.StatusText(status), remedy(status, p.key))
	}
	var list struct {
		Data []struct {
			ID          string      `json:"id"`
			Root        string      `json:"root"`
			Parent      string      `json:"parent"`
			MaxModelLen json.Number `json:"max_model_len"`
			Owner       string      `json:"owned_by"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		what := "not the JSON of an engine's model list"
		if bytes.HasPrefix(bytes.TrimSpace(body), []byte("<")) {
			what = "a web page instead of an engine's model list"
		}
		return nil, "", fmt.Errorf("%s: 200, but %s: check the engine URL: %w", p.url(path), what, err)
	}
	for _, m := range list.Data {
		if m.ID == "" {
			continue
		}
		if m.Root == "" {
			m.Root = m.ID
		}
		if owner == "" {
			owner = m.Owner
		}
		length, _ := m.MaxModelLen.Int64() // 0 when absent
		models = append(models, Model{ID: m.ID, Root: m.Root, Parent: m.Parent, MaxModelLen: max(length, 0)})
	}
	if len(models) == 0 {
		return nil, "", fmt.Errorf("%s: 200, but it names no model: check the engine URL, or whether the engine has loaded one", p.url(path))
	}
	return models, owner, nil
}

// remedy says what to do about a refused model list.
func remedy(status int, key string) string {
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		if key == "" {
			return "set the engine's API key"
		}
		return "the engine does not take the API key that is set for it"
	case status == http.StatusNotFound || status == http.StatusMethodNotAllowed:
		return "no OpenAI-compatible engine at this URL: give the address in front of /v1"
	case status/100 == 3:
		return "redirects are not followed: give the engine's own address"
	case status/100 == 5:
		return "the engine, or what stands before it, is not ready"
	}
	return "check the engine URL"
}

// errNoPage says that the server has no metrics page at all.
var errNoPage = errors.New("no metrics page")

// metrics scrapes the page once.
func (p prober) metrics(ctx context.Context, models []Model) (Page, error) {
	const path = "/metrics"
	status, body, err := p.get(ctx, path)
	if err != nil {
		return Page{}, err
	}
	if status == http.StatusNotFound || status == http.StatusNotImplemented {
		return Page{}, fmt.Errorf("%s: %d: %w", p.url(path), status, errNoPage)
	}
	if status != http.StatusOK {
		return Page{}, fmt.Errorf("%s: %d %s", p.url(path), status, http.StatusText(status))
	}
	names := make([]string, len(models))
	for i, m := range models {
		names[i] = m.ID
	}
	page, err := ParsePage(body, names...)
	if err != nil {
		return Page{}, fmt.Errorf("%s: %w", p.url(path), err)
	}
	return page, nil
}

// health asks whether the server can serve. An engine without that route is up
// when it says so.
func (p prober) health(ctx context.Context, k *kind) (Health, error) {
	status, body, err := p.get(ctx, k.health)
	switch {
	case err != nil && Unreachable(err):
		return Down, err
	case err != nil:
		return Silent, err
	case status/100 == 5:
		said := "the engine says that it is dead"
		if bytes.Contains(body, []byte("Loading model")) { // llama-server
			said = "the engine is loading its model"
		}
		return Down, fmt.Errorf("%s: %d %s: %s", p.url(k.health), status, http.StatusText(status), said)
	}
	return Up, nil
}
