{{- define "stagedoor.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "stagedoor.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "stagedoor.selectorLabels" -}}
app.kubernetes.io/name: {{ include "stagedoor.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "stagedoor.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "stagedoor.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* The labels of the pods that serve; those of `helm test` have another component. */}}
{{- define "stagedoor.podSelector" -}}
{{ include "stagedoor.selectorLabels" . }}
app.kubernetes.io/component: gateway
{{- end }}

{{- define "stagedoor.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "stagedoor.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "stagedoor.image" -}}
{{ printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}

{{- define "stagedoor.configSecret" -}}
{{ default (printf "%s-config" (include "stagedoor.fullname" .)) .Values.existingSecret }}
{{- end }}

{{- define "stagedoor.sealingSecret" -}}
{{ default (printf "%s-sealing" (include "stagedoor.fullname" .)) .Values.sealing.existingSecret }}
{{- end }}

{{- define "stagedoor.sealingKeys" -}}
{{ ternary .Values.sealing.existingSecretKeys (list "key-1") (ne .Values.sealing.existingSecret "") | toJson }}
{{- end }}

{{/* Whether there is a store that replicas can share. */}}
{{- define "stagedoor.shared" -}}
{{- if or .Values.redis.enabled .Values.externalRedis.url .Values.externalRedis.existingSecret }}true{{ end }}
{{- end }}

{{/* The most replicas that there may be at a time by intention. */}}
{{- define "stagedoor.several" -}}
{{- if or (and .Values.autoscaling.enabled (gt (int .Values.autoscaling.maxReplicas) 1)) (and (not .Values.autoscaling.enabled) (gt (int .Values.replicaCount) 1)) }}true{{ end }}
{{- end }}

{{/* Whether a pod may be taken away without nobody being left. */}}
{{- define "stagedoor.spare" -}}
{{- if gt (int (ternary .Values.autoscaling.minReplicas .Values.replicaCount .Values.autoscaling.enabled)) 1 }}true{{ end }}
{{- end }}

{{/* Names by which the gateway is called: a request under another name is refused. */}}
{{- define "stagedoor.hosts" -}}
{{- $service := include "stagedoor.fullname" . }}
{{- $inside := list $service (printf "%s.%s" $service .Release.Namespace) (printf "%s.%s.svc" $service .Release.Namespace) (printf "%s.%s.svc.cluster.local" $service .Release.Namespace) }}
{{- $given := dig "auth" "hosts" (list) .Values.config.gateway }}
{{- $outside := list }}
{{- if .Values.ingress.enabled }}
{{- range .Values.ingress.hosts }}{{ $outside = append $outside .host }}{{ end }}
{{- end }}
{{- if .Values.httpRoute.enabled }}
{{- $outside = concat $outside .Values.httpRoute.hostnames }}
{{- end }}
{{- concat $given $inside $outside | uniq | toJson }}
{{- end }}

{{/* Where a pod writes its audit trail: in a configuration, in which ${STAGEDOOR_POD} is its name. */}}
{{- define "stagedoor.auditFile" -}}
/var/log/stagedoor/${STAGEDOOR_POD}.jsonl
{{- end }}

{{/* The configuration file. */}}
{{- define "stagedoor.config" -}}
{{- $config := deepCopy .Values.config }}
{{- $demo := not $config.mcpServers }}
{{- if $demo }}
{{- $_ := set $config "mcpServers" (dict "demo" (dict "native" "gateway.native.demo:server") "notes" (dict "native" "gateway.native.notes:server")) }}
{{- end }}
{{- $gateway := default (dict) $config.gateway }}
{{- $keys := list }}
{{- range $place, $_ := include "stagedoor.sealingKeys" . | fromJsonArray }}
{{- $keys = append $keys (printf "${STAGEDOOR_KEY_%d}" (add1 $place)) }}
{{- end }}
{{- $_ := set $gateway "keys" $keys }}
{{- if include "stagedoor.shared" . }}
{{- $_ := set $gateway "store" "${STAGEDOOR_STORE}" }}
{{- end }}
{{- $auth := default (dict) $gateway.auth }}
{{- $_ := set $auth "hosts" (include "stagedoor.hosts" . | fromJsonArray) }}
{{- if and $demo (not $auth.tokens) (not $auth.issuers) }}
{{- $_ := set $auth "anonymous" true }}
{{- else if not (or $auth.tokens $auth.issuers $auth.anonymous) }}
{{- fail "config.gateway.auth is missing: set `tokens` or `issuers`, or `anonymous: true` if everybody in the cluster may use the servers" }}
{{- end }}
{{- $_ := set $gateway "auth" $auth }}
{{- if .Values.audit.enabled }}
{{- $_ := set $gateway "audit" (set (default (dict) $gateway.audit) "file" (include "stagedoor.auditFile" .)) }}
{{- end }}
{{- $_ := set $config "gateway" $gateway }}
{{- $config | toPrettyJson }}
{{- end }}

{{/*
From the moment when a pod is told to end until it has ended for sure: preStop, then gateway.drain.grace and .deadline,
1 s for connections that are open, 6 s until the gateway's watchdog ends it; with workers another 5 s until their supervisor
does; and 2 s to spare. A test compares it with what the gateway itself says.
*/}}
{{- define "stagedoor.terminationGracePeriodSeconds" -}}
{{- $drain := dig "drain" (dict) .Values.config.gateway }}
{{- $workers := ternary 5 0 (gt (int (dig "workers" 1 .Values.config.gateway)) 1) }}
{{- addf .Values.preStopSeconds (dig "grace" 0 $drain) (dig "deadline" 8 $drain) 1 6 $workers 2 | ceil | int }}
{{- end }}

{{- define "stagedoor.validate" -}}
{{- if and (include "stagedoor.several" .) (not (include "stagedoor.shared" .)) (not .Values.existingSecret) }}
{{- fail "several replicas need a store that they share: set redis.enabled, externalRedis.url or externalRedis.existingSecret" }}
{{- end }}
{{- if and .Values.redis.enabled (or .Values.externalRedis.url .Values.externalRedis.existingSecret) }}
{{- fail "redis.enabled and externalRedis exclude each other: say which one it is" }}
{{- end }}
{{- if and .Values.existingSecret .Values.pins.lock }}
{{- fail "existingSecret and pins.lock exclude each other: put the text under stagedoor.lock into that Secret" }}
{{- end }}
{{- if and .Values.audit.enabled (dig "audit" "file" "" .Values.config.gateway) }}
{{- fail "audit.enabled and config.gateway.audit.file exclude each other: the chart says where the file is" }}
{{- end }}
{{- if and .Values.audit.existingClaim (not .Values.audit.enabled) }}
{{- fail "audit.existingClaim is not used: set audit.enabled" }}
{{- end }}
{{- end }}
