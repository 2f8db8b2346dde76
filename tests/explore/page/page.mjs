// Imports a module of explore.html by its name.
export const PAGE = (name) => import(`../../../src/scatlas/workflow/explore/page/${name}.js`);
