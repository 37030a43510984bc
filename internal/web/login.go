package web

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"lmwarden/internal/access"
)

// Logins are the operators who are logged in. *access.Logins is one.
type Logins interface {
	Required() bool
	// Valid says whether a token stands for a login.
	Valid(now time.Time, token string) bool
	// Open checks a password and begins a login; Check only checks. Their errors are
	// access.ErrWrong and access.ErrTooMany.
	Open(now time.Time, password string) (token string, err error)
	Check(now time.Time, password string) error
	Close(token string)
}

// noLogins is a console that is open to whoever reaches it.
type noLogins struct{}

func (noLogins) Required() bool                         { return false }
func (noLogins) Valid(time.Time, string) bool           { return true }
func (noLogins) Open(time.Time, string) (string, error) { return "", nil }
func (noLogins) Check(time.Time, string) error          { return nil }
func (noLogins) Close(string)                           {}

const (
	loginCookie = "warden_login"
	loginPath   = "/login"
	logoutPath  = "/logout"
)

// withLogin lets operators in who are logged in, and programs that send the
// password as HTTP Basic authentication does, with any user. Probes and what the
// login page is made of need neither.
func (h *Handler) withLogin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Path
		if !h.o.Logins.Required() || path == loginPath || path == "/healthz" || path == "/readyz" || strings.HasPrefix(path, "/static/") || h.loggedIn(r) {
			next.ServeHTTP(w, r)
			return
		}
		if _, password, sent := r.BasicAuth(); sent {
			if err := h.o.Logins.Check(h.o.Now(), password); err != nil {
				h.refuseLogin(w, err)
				return
			}
			next.ServeHTTP(w, r)
			return
		}
		if isPage := r.Method == http.MethodGet && !strings.HasPrefix(path, "/api/") && path != "/metrics"; isPage {
			to := url.Values{"to": {r.URL.RequestURI()}}
			http.Redirect(w, r, loginPath+"?"+to.Encode(), http.StatusSeeOther)
			return
		}
		if r.Header.Get("Sec-Fetch-Mode") == "" { // else a browser would ask in a window of its own
			w.Header().Set("WWW-Authenticate", `Basic realm="LM Warden", charset="UTF-8"`)
		}
		writeError(w, http.StatusUnauthorized, "log in at %s, or send the password as HTTP Basic authentication, with any user", loginPath)
	})
}

func (h *Handler) loggedIn(r *http.Request) bool {
	c, err := r.Cookie(loginCookie)
	return err == nil && h.o.Logins.Valid(h.o.Now(), c.Value)
}

func (h *Handler) refuseLogin(w http.ResponseWriter, err error) {
	if errors.Is(err, access.ErrTooMany) {
		w.Header().Set("Retry-After", "60")
		writeError(w, http.StatusTooManyRequests, "%v", err)
		return
	}
	writeError(w, http.StatusUnauthorized, "%v", err)
}

// loginPage shows the form, and takes it.
func (h *Handler) loginPage(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 16<<10)
	to := localPath(r.FormValue("to"))
	if !h.o.Logins.Required() || r.Method != http.MethodPost && h.loggedIn(r) {
		http.Redirect(w, r, to, http.StatusSeeOther)
		return
	}
	status, problem := http.StatusOK, ""
	if r.Method == http.MethodPost {
		token, err := h.o.Logins.Open(h.o.Now(), r.PostFormValue("password"))
		switch {
		case err == nil:
			http.SetCookie(w, &http.Cookie{
				Name: loginCookie, Value: token, Path: "/", HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode,
			})
			http.Redirect(w, r, to, http.StatusSeeOther)
			return
		case errors.Is(err, access.ErrTooMany):
			status = http.StatusTooManyRequests
		default:
			status = http.StatusUnauthorized
		}
		problem = sentenceOf(err.Error())
	}
	h.render(w, r, status, "login.html", struct{ To, Problem string }{to, problem})
}

// logout ends a login.
func (h *Handler) logout(w http.ResponseWriter, r *http.Request) {
	if c, err := r.Cookie(loginCookie); err == nil {
		h.o.Logins.Close(c.Value)
	}
	http.SetCookie(w, &http.Cookie{Name: loginCookie, Path: "/", MaxAge: -1, HttpOnly: true, SameSite: http.SameSiteStrictMode})
	http.Redirect(w, r, loginPath, http.StatusSeeOther)
}

// localPath is where to go after the login: an address of ours, whatever was
// asked for.
func localPath(to string) string {
	u, err := url.Parse(to)
	if err != nil || u.Scheme != "" || u.Host != "" || !strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//") || strings.ContainsAny(to, "\\\r\n\t") {
		return "/"
	}
	return to
}
