package top

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// admin serves an admin API whose answers are by path; what is missing is 404.
func admin(t *testing.T, status int, answers map[string]string) (c *Client, asked *[]string) {
	t.Helper()
	asked = new([]string)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		*asked = append(*asked, strings.TrimSpace(fmt.Sprintf("%s %s %s%s", r.Method, r.RequestURI, user, password)))
		text, ok := answers[r.URL.Path]
		switch {
		case status != 0:
			w.WriteHeader(status)
		case !ok:
			w.WriteHeader(http.StatusNotFound)
			text = `{"error": {"message": "no such thing"}}`
		}
		io.WriteString(w, text)
	}))
	t.Cleanup(s.Close)
	c, err := NewClient(s.URL+"/", "me", "word")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, asked
}

var answers = map[string]string{
	"/api/overview":      `{"state": "fine"}`,
	"/api/models":        `{"models": [{"name": "org/a b"}]}`,
	"/api/stats/moves":   `{"moves": [{"from": 0, "to": null, "reason": "moved", "requests": 2}]}`,
	"/api/conversations": `{"conversations": [], "next": "x"}`,
}

func TestAScreensNeedsAreRead(t *testing.T) {
	c, asked := admin(t, 0, answers)
	s, err := c.Read(t.Context(), Query{Model: "org/a b"})
	if err != nil || s.Overview.State != "fine" || len(s.Models) != 1 || len(s.Moves) != 1 || s.Conversations != nil {
		t.Errorf("%+v, %v", s, err)
	}
	s, err = c.Read(t.Context(), Query{Conversations: true, Sort: "turns", Limit: 7})
	if err != nil || s.Conversations == nil || !s.More {
		t.Errorf("%+v, %v", s, err)
	}
	want := []string{
		"GET /api/overview meword", "GET /api/models meword", "GET /api/stats/moves?model=org%2Fa+b&range=1h meword",
		"GET /api/overview meword", "GET /api/models meword", "GET /api/conversations?limit=7&sort=turns meword",
	}
	if diff := cmp.Diff(want, *asked); diff != "" {
		t.Error(diff)
	}
}

func TestAHistoryThatCannotBeReadTakesNothingElse(t *testing.T) {
	without := map[string]string{"/api/overview": answers["/api/overview"], "/api/models": answers["/api/models"]}
	c, _ := admin(t, 0, without)
	s, err := c.Read(t.Context(), Query{Model: "a"})
	if err != nil || len(s.Models) != 1 || !strings.Contains(s.MovesUnknown, "no such thing") {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestActionsNameTheirReplica(t *testing.T) {
	c, asked := admin(t, 0, map[string]string{"/api/models/org/a b/replicas/3/drain": "{}", "/api/models/org/a b/replicas/0/resume": "{}"})
	if err := errors.Join(c.Drain(t.Context(), "org/a b", 3), c.Resume(t.Context(), "org/a b", 0)); err != nil {
		t.Error(err)
	}
	want := []string{"POST /api/models/org%2Fa%20b/replicas/3/drain meword", "POST /api/models/org%2Fa%20b/replicas/0/resume meword"}
	if diff := cmp.Diff(want, *asked); diff != "" {
		t.Error(diff)
	}
	if err := c.Drain(t.Context(), "other", 1); err == nil || !strings.Contains(err.Error(), "no such thing") {
		t.Error(err)
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	for _, test := range []struct {
		status  int
		refused bool
		want    string
	}{
		{401, true, "WARDEN_ADMIN_PASSWORD"},
		{429, true, "429"},
		{403, true, "403"},
		{404, false, "is this the admin listener?"},
		{500, false, "GET /api/overview: 500"},
	} {
		c, asked := admin(t, test.status, nil)
		_, err := c.Read(t.Context(), Query{})
		if err == nil || !strings.Contains(err.Error(), test.want) || errors.Is(err, ErrRefused) != test.refused {
			t.Errorf("%d: %v", test.status, err)
		}
		if len(*asked) != 1 {
			t.Errorf("%d: asked %v", test.status, *asked)
		}
	}
	c, _ := admin(t, 0, map[string]string{"/api/overview": "<html>"})
	if _, err := c.Read(t.Context(), Query{}); err == nil || !strings.Contains(err.Error(), "is no admin listener") {
		t.Error(err)
	}
	gone := httptest.NewServer(nil)
	gone.Close()
	c, err := NewClient(gone.URL, "", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(t.Context(), Query{}); err == nil || !strings.Contains(err.Error(), "no answer from "+gone.URL) {
		t.Error(err)
	}
	for _, address := range []string{"", "127.0.0.1:8101", "ftp://a", "http://a:b@c", "http://"} {
		if _, err := NewClient(address, "", ""); err == nil {
			t.Errorf("%q was taken", address)
		}
	}
}
