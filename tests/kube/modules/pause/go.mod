module warpbeam.test/kube/pause

go 1.26.0
