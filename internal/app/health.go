package app

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// healthFor is how long a gateway may take to say that it is well.
const healthFor = 5 * time.Second

// Health asks the clients' listener of a gateway whether it takes requests, and
// fails when it does not. A container without a shell has this for its health check.
func Health(ctx context.Context, base string) error {
	at, err := url.Parse(base)
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" {
		return usageErrorf("--url %q: write http:// or https:// with the address for clients, as in http://127.0.0.1:8100", base)
	}
	ctx, cancel := context.WithTimeout(ctx, healthFor)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.JoinPath("health").String(), nil)
	if err != nil {
		return fmt.Errorf("ask %s: %w", base, err)
	}
	transport := &http.Transport{DisableKeepAlives: true} // not through a proxy: it is this one that is asked
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return err // which names the address
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		says, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("%s is not well: %s %s", base, resp.Status, says)
	}
	return nil
}
