-- Health of a DDPJob for Argo CD, by its phase.
local health_of = {
  Running = "Healthy",
  Succeeded = "Healthy",
  Suspended = "Suspended",
  Failed = "Degraded",
}

local hs = { status = "Progressing", message = "Waiting for the DDPJob operator" }
local status = obj.status
if status == nil or status.phase == nil then
  return hs
end
if status.observedGeneration ~= nil and status.observedGeneration ~= obj.metadata.generation then
  hs.message = "Waiting for the DDPJob operator to see the changed spec"
  return hs
end
-- Pending, Starting and Restarting, and whatever a later release adds, are progress.
hs.status = health_of[status.phase] or "Progressing"
hs.message = status.phase
if status.message ~= nil and status.message ~= "" then
  hs.message = status.phase .. ": " .. status.message
end
return hs
