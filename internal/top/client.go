package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// ErrRefused says that a gateway does not let us in.
var ErrRefused = errors.New("the gateway refuses")

const (
	// answerWithin bounds one request to the gateway.
	answerWithin = 10 * time.Second
	// maxAnswer bounds an answer: a thousand conversations take half a megabyte.
	maxAnswer = 16 << 20
)

// Client speaks with the admin API of a gateway.
type Client struct {
	base           *url.URL
	user, password string
	http           *http.Client
}

// NewClient speaks with the admin listener at an address such as
// http://127.0.0.1:8101. The password is sent as HTTP Basic authentication, when
// there is one.
func NewClient(address, user, password string) (*Client, error) {
	base, err := url.Parse(address)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" || base.User != nil || base.RawQuery != "" {
		return nil, fmt.Errorf("%q is not the address of an admin listener; write it as http://127.0.0.1:8101", address)
	}
	return &Client{base: base, user: user, password: password, http: &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment}, Timeout: answerWithin}}, nil
}

// Close lets go of idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Read implements Gateway.
func (c *Client) Read(ctx context.Context, q Query) (Snapshot, error) {
	var s Snapshot
	if err := c.do(ctx, http.MethodGet, "/api/overview", nil, &s.Overview); err != nil {
		return s, err
	}
	var models struct{ Models []Model }
	if err := c.do(ctx, http.MethodGet, "/api/models", nil, &models); err != nil {
		return s, err
	}
	s.Models = models.Models
	if q.Conversations {
		return s, c.readConversations(ctx, q, &s)
	}
	var moves struct{ Moves []Move }
	if q.Model != "" {
		// A history that cannot be read takes nothing else from the screen.
		if err := c.do(ctx, http.MethodGet, "/api/stats/moves", url.Values{"model": {q.Model}, "range": {"1h"}}, &moves); err != nil {
			s.MovesUnknown = err.Error()
		}
	}
	s.Moves = moves.Moves
	return s, nil
}

func (c *Client) readConversations(ctx context.Context, q Query, s *Snapshot) error {
	var page struct {
		Conversations []Conversation
		Next          *string
	}
	values := url.Values{"sort": {q.Sort}, "limit": {strconv.Itoa(q.Limit)}}
	if err := c.do(ctx, http.MethodGet, "/api/conversations", values, &page); err != nil {
		return err
	}
	s.Conversations, s.More = append([]Conversation{}, page.Conversations...), page.Next != nil
	return nil
}

// Drain implements Gateway.
func (c *Client) Drain(ctx context.Context, model string, replica int) error {
	return c.act(ctx, model, replica, "drain")
}

// Resume implements Gateway.
func (c *Client) Resume(ctx context.Context, model string, replica int) error {
	return c.act(ctx, model, replica, "resume")
}

func (c *Client) act(ctx context.Context, model string, replica int, action string) error {
	return c.do(ctx, http.MethodPost, fmt.Sprintf("/api/models/%s/replicas/%d/%s", url.PathEscape(model), replica, action), nil, nil)
}

// do makes one request; into may be nil.
func (c *Client) do(ctx context.Context, method, path string, query url.Values, into any) error {
	to := strings.TrimSuffix(c.base.String(), "/") + path
	if len(query) > 0 {
		to += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, to, nil)
	if err != nil {
		return err
	}
	if c.password != "" {
		req.SetBasicAuth(c.user, c.password)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return c.unanswered(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if res.StatusCode != http.StatusOK {
		return refusal(res, method+" "+path, body)
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("%s is no admin listener of a gateway: %s %s does not answer with its JSON", c.base, method, path)
	}
	return nil
}

// unanswered says who did not answer in few words: the library's own error names
// the address twice.
func (c *Client) unanswered(err error) error {
	var asking *url.Error
	if errors.As(err, &asking) {
		err = asking.Err
	}
	var network *net.OpError
	if errors.As(err, &network) {
		err = network.Err
	}
	return fmt.Errorf("no answer from %s: %w", c.base, err)
}

// refusal is the error of an answer that is not what was asked for.
func refusal(res *http.Response, what string, body []byte) error {
	var said struct{ Error struct{ Message string } }
	_ = json.Unmarshal(body, &said) // others' errors have another form, or none
	message := said.Error.Message
	if message == "" {
		message = res.Status
	}
	switch res.StatusCode {
	case http.StatusUnauthorized:
		return fmt.Errorf("%w: it asks for the password of its console; give it in WARDEN_ADMIN_PASSWORD or with --password-file", ErrRefused)
	case http.StatusForbidden, http.StatusTooManyRequests:
		return fmt.Errorf("%w: %s", ErrRefused, message)
	case http.StatusNotFound:
		return fmt.Errorf("%s: %s (is this the admin listener? its port is 8101 by default)", what, message)
	}
	return fmt.Errorf("%s: %s", what, message)
}
