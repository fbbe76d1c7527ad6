{{- define "redis.fullname" -}}
{{ default (printf "%s-redis" .Release.Name | trunc 63 | trimSuffix "-") .Values.fullnameOverride }}
{{- end }}

{{- define "redis.selectorLabels" -}}
app.kubernetes.io/name: redis
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "redis.labels" -}}
{{ include "redis.selectorLabels" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "redis.secret" -}}
{{ default (include "redis.fullname" .) .Values.existingSecret }}
{{- end }}
