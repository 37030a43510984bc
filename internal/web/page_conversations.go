package web

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"lmwarden/internal/session"
)

// conversationsPage is one page of the table.
type conversationsPage struct {
	page
	Heading string
	Sort    string
	Heads   []sortHead
	Rows    []conversationRow
	// Models and Replicas are choices; none where there is only one.
	Models, Replicas []filterLink
	Client           string // the filter in force, and the link without it
	All              string
	First            string // link to the first page, empty on it
	Next             string // link to the next page, empty on the last
}

// sortHead is a column of the table.
type sortHead struct {
	Label, Explain string
	Left           bool
	Link           string // sorts by the column; empty when it cannot
	On             bool
}

// filterLink is a choice among some, one of which is in force.
type filterLink struct {
	Label, Link string
	On          bool
}

// conversationRow is a conversation for people.
type conversationRow struct {
	ID, Path              string
	Client, Source        string
	APIKey                string // the name of the client's, or empty
	ClientLink            string
	Model, ModelPath      string
	Home, Colour          string
	Turns                 int64
	Context, ContextExact string
	Cached                bar
	First, Last           time.Time
	Open                  int
	Spills, Moves         int64
	Child                 bool
}

// conversationColumns are the columns of the table; sort names the order of those
// that have one.
var conversationColumns = [...]struct {
	label, explain, sort string
	left                 bool
}{
	{"Conversation", "its name here, and what names it: the client's id, or its history", "", true},
	{"Client", "the program by its User-Agent", "", true},
	{"Home", "the replica that holds its cache", "", true},
	{"Turns", "requests that asked for an answer", "turns", false},
	{"Context", "prompt tokens of the last turn", "prompt_tokens", false},
	{"Cached share", "of the last turn's prompt, by the engine's own count", "", true},
	{"Spills", "turns that went elsewhere because the home was full", "", false},
	{"Moves", "changes of the home", "", false},
	{"Began", "first request", "first_seen", false},
	{"Last request", "", "last_seen", false},
	{"Open", "requests open now", "in_flight", false},
}

func (h *Handler) conversationsPage(w http.ResponseWriter, r *http.Request) {
	const perPage = 50
	q := r.URL.Query()
	if id := q.Get("id"); id != "" {
		http.Redirect(w, r, conversationPath(id), http.StatusSeeOther)
		return
	}
	pools, known := h.poolsByName()
	if name := q.Get("model"); name != "" && pools[name] == nil {
		h.notFound(w, r, noSuchModel(name, known))
		return
	}
	shown := poolOf(q.Get("model"), pools)
	query := session.Query{Model: q.Get("model"), Client: q.Get("client"), Sort: cmp.Or(q.Get("sort"), "last_seen"), Limit: perPage, Cursor: q.Get("cursor")}
	if err := atReplica(&query, q.Get("replica"), shown); err != nil {
		h.badRequest(w, r, err)
		return
	}
	list, next, err := h.o.Conversations.Conversations(query)
	if err != nil {
		h.badRequest(w, r, err)
		return
	}
	p := conversationsPage{page: h.page(r, navConversations, "Conversations", "/api/conversations"), Sort: query.Sort, Client: query.Client}
	live, all := 0, 0
	for _, pool := range pools {
		v := pool.View()
		if query.Model == "" || query.Model == v.Name {
			live += v.Routing.Live
			all += v.Routing.Known
		}
	}
	p.Refresh = listRefresh(all)
	p.Heading = plural(live, "1 live conversation", "%d live conversations") + fmt.Sprintf(", %s with a home", thousands(int64(all)))
	with := func(change func(url.Values)) string {
		v := url.Values{}
		for _, key := range []string{"model", "replica", "client", "sort"} {
			if q.Get(key) != "" {
				v.Set(key, q.Get(key))
			}
		}
		change(v)
		return "/conversations" + encoded(v)
	}
	for _, c := range conversationColumns {
		head := sortHead{Label: c.label, Explain: c.explain, Left: c.left, On: c.sort != "" && c.sort == query.Sort}
		if c.sort != "" {
			head.Link = with(func(v url.Values) { v.Set("sort", c.sort) })
		}
		p.Heads = append(p.Heads, head)
	}
	if len(known) > 1 {
		to := func(name string) string {
			return with(func(v url.Values) {
				v.Del("replica") // which counts within a model
				set(v, "model", name)
			})
		}
		p.Models = append(p.Models, filterLink{"All models", to(""), query.Model == ""})
		for _, name := range known {
			p.Models = append(p.Models, filterLink{name, to(name), name == query.Model})
		}
	}
	if shown != nil {
		if replicas := len(shown.View().Replicas); replicas > 1 {
			to := func(n string) string { return with(func(v url.Values) { set(v, "replica", n) }) }
			p.Replicas = append(p.Replicas, filterLink{"All replicas", to(""), q.Get("replica") == ""})
			for i := range replicas {
				n := strconv.Itoa(i)
				p.Replicas = append(p.Replicas, filterLink{n, to(n), n == q.Get("replica")})
			}
		}
	}
	p.All = with(func(v url.Values) { v.Del("client") })
	if query.Cursor != "" {
		p.First = with(func(url.Values) {})
	}
	if next != "" {
		p.Next = with(func(v url.Values) { v.Set("cursor", next) })
	}
	for _, c := range list {
		row := h.conversationRow(c, pools[c.Model])
		row.ClientLink = with(func(v url.Values) { v.Set("client", c.Client) })
		p.Rows = append(p.Rows, row)
	}
	h.render(w, r, http.StatusOK, "conversations.html", p)
}

// set gives a parameter a value; without one it goes.
func set(v url.Values, key, value string) {
	if value == "" {
		v.Del(key)
		return
	}
	v.Set(key, value)
}

// listRefresh is how often a page asks again whose lists look at every row of the
// table.
func listRefresh(known int) int {
	if known > 100_000 {
		return 5 * often
	}
	return often
}

// poolsByName are the pools by their names, and the names in order.
func (h *Handler) poolsByName() (pools map[string]Pool, names []string) {
	pools = map[string]Pool{}
	for _, p := range h.o.Pools() {
		name := p.View().Name
		pools[name] = p
		names = append(names, name)
	}
	return pools, names
}

// encoded is a query with its question mark, empty without parameters.
func encoded(v url.Values) string {
	if len(v) == 0 {
		return ""
	}
	return "?" + v.Encode()
}

func conversationPath(id string) string { return "/conversations/" + url.PathEscape(id) }

// conversationRow joins a row of the table with its home; p may be nil.
func (h *Handler) conversationRow(c session.Conversation, p Pool) conversationRow {
	row := conversationRow{
		ID: c.Name, Path: conversationPath(c.Name), Client: c.Client, Source: c.Source, APIKey: c.Tenant,
		Model: c.Model, ModelPath: modelPath(c.Model), Home: dash, Colour: "",
		Turns: c.Turns, Context: dash, Cached: barOf("hit", share(c.CachedTokens, c.PromptTokens)),
		First: c.FirstSeen, Last: c.LastSeen, Open: c.Open, Child: c.Parent != session.Key{},
	}
	if c.CachedTokens < 0 {
		row.Cached = barOf("hit", unknownPercent)
	}
	if c.PromptTokens >= 0 {
		row.Context, row.ContextExact = tokens(c.PromptTokens), thousands(c.PromptTokens)
	}
	if p == nil {
		return row
	}
	if home, ok := p.Home(c.Key); ok && home.Replica >= 0 {
		row.Home, row.Colour = strconv.Itoa(home.Replica), replicaColour(home.Replica, len(p.View().Replicas))
		row.Spills, row.Moves = home.Spills, home.Moves
	}
	return row
}

// thousands writes a whole number with commas.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// rowOnPage is a row with the page that it stands on, which knows the time.
type rowOnPage struct {
	conversationRow
	Page page
}

// Row joins a row with its page for a template.
func (p page) Row(r conversationRow) rowOnPage { return rowOnPage{r, p} }
