// CoreDNS with no more than what resolves the names of services and pods.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
)

func main() {
	// The order in which a request passes through them.
	dnsserver.Directives = []string{"bind", "health", "errors", "kubernetes"}
	coremain.Run()
}
